"""EngineProcess: the engine's process as its parent holds it. What runs in it is `engine.process`.

Imports nothing heavy, so that a command can start it first of all: the process loads torch while the command finds out
what it is to serve. Invariant: as a context manager it leaves no process behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

CLOSE_TIMEOUT = 5.0


class EngineProcess:
    """A running process and ``connection``, our end of the socket over which it waits for an EngineConfig."""

    def __init__(self, module: str = "engine.process") -> None:
        self.connection, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parent.parent)
        search_path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # Control-C is for the parent alone. The process ignores it once it can, and until then does not get it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": search_path},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._process.wait()
        self.connection.close()

    @property
    def pid(self) -> int | None:
        """None once it was seen to have ended."""
        return None if self._process.returncode is not None else self._process.pid

    def kill(self) -> None:
        """End it on the spot; nothing where it has ended."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for its end and return its status; one that does not end soon is killed. Blocks."""
        try:
            return self._process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()
