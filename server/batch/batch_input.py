"""BatchInput: the requests of a batch file, looked through once before the first of them runs.

Keeps where each line begins, not what it says, so that a file of any size costs a few bytes a line.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Set
from pathlib import Path

from server.batch.batch_line import BatchError, BatchLine


class BatchInput:
    """A file whose lines have all been parsed once; ``custom_ids`` are in its order."""

    def __init__(self, path: Path) -> None:
        """Raises BatchError, with the number of the line, for the first thing that is wrong."""
        self._path = path
        self._starts = array("q")
        self.custom_ids: dict[str, int] = {}
        start = 0
        try:
            with path.open("rb") as lines:
                for number, text in enumerate(lines, 1):
                    if text.strip():
                        self._add(number, start, text)
                    start += len(text)
        except OSError as error:
            raise BatchError(f"{path}: {error.strerror}") from None
        if not self.custom_ids:
            raise BatchError(f"{path}: has no requests")

    def _add(self, number: int, start: int, text: bytes) -> None:
        try:
            line = BatchLine.parse(text)
        except BatchError as error:
            raise BatchError(f"{self._path}, line {number}: {error}") from None
        if line.custom_id in self.custom_ids:
            raise BatchError(f"{self._path}, line {number}: custom_id {line.custom_id!r} is taken by an earlier line")
        self.custom_ids[line.custom_id] = len(self._starts)
        self._starts.append(start)

    def __len__(self) -> int:
        return len(self._starts)

    def without(self, done: Set[str]) -> Iterator[BatchLine]:
        """The requests in order, but for those whose ids are ``done``."""
        with self._path.open("rb") as lines:
            for custom_id, place in self.custom_ids.items():
                if custom_id not in done:
                    lines.seek(self._starts[place])
                    yield BatchLine.parse(lines.readline())
