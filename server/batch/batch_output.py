"""BatchOutput: the answers of a batch, one line each, in a file that survives a kill at any moment.

A line is appended as soon as it is known. Whoever opens the file again finds which requests are answered; a line that
was cut by a kill is taken away, and its request is as if it had never run. Invariant: an answered request has exactly
one whole line. One process at a time: a second one is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Container
from pathlib import Path
from types import TracebackType

import orjson

from server.batch.batch_line import BatchError


class BatchOutput:
    """An open output file; ``answered`` are the ids that have a line, ``num_failed`` of them with an error status."""

    def __init__(self, path: Path, known: Container[str]) -> None:
        """``known`` ids are those of the input. Raises BatchError for a file that answers another input, or is none."""
        self.answered: set[str] = set()
        self.num_failed = 0
        self._path = path
        try:
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise BatchError(f"{path}: {error.strerror}") from None
        try:
            if not path.is_file():
                raise BatchError(f"{path}: is no file that can be read again")
            self._lock()
            self._read(known)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchError(f"{self._path}: another process writes this file") from None

    def _read(self, known: Container[str]) -> None:
        self._file.seek(0)
        whole = 0
        with open(self._path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # cut by a kill
                self._note(number, line, known)
                whole += len(line)
        self._file.truncate(whole)

    def _note(self, number: int, line: bytes, known: Container[str]) -> None:
        try:
            fields = orjson.loads(line)
            custom_id, status = fields["custom_id"], fields["response"]["status_code"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise BatchError(f"{self._path}, line {number}: is no answer of a batch; choose another output") from None
        if custom_id not in known:
            raise BatchError(
                f"{self._path}, line {number}: answers {custom_id!r}, which is not in the input; choose another output"
            )
        if custom_id in self.answered:
            raise BatchError(f"{self._path}, line {number}: answers {custom_id!r} a second time")
        self.answered.add(custom_id)
        self.num_failed += status >= 400

    def append(self, custom_id: str, status: int, line: bytes) -> None:
        """Write an answer, its line break included. Raises BatchError when the disk takes no more."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise BatchError(f"{self._path}: {error.strerror}") from None
        self.answered.add(custom_id)
        self.num_failed += status >= 400
