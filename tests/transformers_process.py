"""TransformersProcess: the tests' end of `transformers_oracle.py`, started with the first question."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("transformers_oracle.py")


class TransformersProcess:
    """Answers jobs one after the other, in ``directory``, where its messages are kept in ``stderr``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def ask(self, job: str, **request: Any) -> Any:
        """What the job answers; AssertionError with its traceback where it fails."""
        if self._process is None:
            with (self._directory / "stderr").open("w") as messages:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", str(PROGRAM)],
                    cwd=self._directory,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=messages,
                    text=True,
                )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"job": job, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self._directory / "stderr").read_text()
        reply = json.loads(line)
        assert "error" not in reply, reply["error"]
        return reply["answer"]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # closes its input, with which it ends
