"""LineWriter: writes lines to a file descriptor on a thread of its own.

Whoever reads a log may be slow, or not read at all; that must hold up no answer and no step. Lines that come close to
each other are written at once. Invariants: `write` never waits; what is kept is bounded, and lines beyond it are
counted and told.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

CAPACITY = 10_000  # lines
LINGER_SECONDS = 0.02  # that a line waits for others
CLOSE_SECONDS = 1.0


class LineWriter:
    """``tell_lost`` makes a line of how many were lost."""

    def __init__(self, descriptor: int, tell_lost: Callable[[int], bytes], capacity: int = CAPACITY) -> None:
        self._descriptor = descriptor
        self._tell_lost = tell_lost
        self._capacity = capacity
        self._lines: deque[bytes] = deque()
        self._lost = 0
        self._has_lines = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Write a line, with its end, a moment later."""
        if len(self._lines) >= self._capacity:
            self._lost += 1
            return
        self._lines.append(line)
        if not self._has_lines.is_set():
            self._has_lines.set()

    def close(self) -> None:
        """Write what is left, unless that takes longer than a second."""
        self._closing.set()
        self._has_lines.set()
        self._thread.join(CLOSE_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether nothing will be written any more."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        closing = False
        while not closing:
            self._has_lines.wait()
            closing = self._closing.wait(LINGER_SECONDS)
            self._has_lines.clear()  # before the lines are taken: those that come meanwhile set it again
            try:
                self._write_all()
            except OSError:
                self._lines.clear()  # nobody reads any more

    def _write_all(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if lost := self._lost:
            self._lost -= lost
            lines.append(self._tell_lost(lost))
        rest = memoryview(b"".join(lines))
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
