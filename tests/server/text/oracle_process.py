"""Runs an oracle, a script beside this file, in an isolated interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def answers_of(script: str, request: Any) -> Any:
    """What ``script`` answers to ``request``, both as JSON."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asked, answered = directory / "request.json", directory / "answers.json"
        asked.write_text(json.dumps(request))
        command = [sys.executable, "-I", str(Path(__file__).with_name(script)), str(asked), str(answered)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=directory)
        assert done.returncode == 0, done.stderr
        return json.loads(answered.read_text())
