"""JobProcess: a program that answers jobs, started with the first question."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class JobProcess:
    """Answers jobs one after the other. Runs in ``cwd``; its messages are kept in ``directory``, in ``stderr``.

    It reads a JSON object a line, with the kind of the job under ``job``, writes ``{"answer": ...}`` or
    ``{"error": TRACEBACK}`` for each, and ends with its input.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, *, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        self._directory = directory
        self._cwd = cwd
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, job: str, **request: Any) -> Any:
        """What the job answers; AssertionError with its traceback where it fails."""
        if self._process is None:
            with (self._directory / "stderr").open("w") as messages:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._cwd,
                    env=self._environment,
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
