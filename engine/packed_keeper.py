"""PackedKeeper: writes the weights that a start has packed to disk, for the next start to map.

While the engine has nothing to do, a portion at a time, on a thread: a request that comes meanwhile waits for no disk,
and while it runs nothing is written. A disk that cannot take them costs a line in the log, and the next start the time.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from engine.log_format import tell
from models.packed_file import PackedFileWriter
from models.packed_weights import PackedWeights

POLL_SECONDS = 0.01  # while a portion is on its way

_logger = logging.getLogger("octavo.engine")


class PackedKeeper:
    """Of ``weights`` that are all there."""

    def __init__(self, weights: PackedWeights) -> None:
        self._weights = weights
        self._is_done = not weights.should_be_kept
        self._writer: PackedFileWriter | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._portion: Future[bool] | None = None

    @property
    def due(self) -> float | None:
        if self._is_done:
            return None
        return 0.0 if self._portion is None or self._portion.done() else POLL_SECONDS

    def advance(self) -> bool:
        if self.due != 0.0:
            return False
        try:
            if self._portion is None or self._portion.result():
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="packed")
                self._portion = self._thread.submit(self._write)
                return True
        except Exception as error:  # of a disk, or no thread to be had: nothing that requests should die of
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            place = f"{self._weights.shown_path} ({reason})"
            self._end(f"packed weights cannot be kept in {place}: the next start packs them again")
            return True
        path, nbytes = self._weights.shown_path, self._weights.nbytes
        self._end(
            f"packed weights, {nbytes / 1e6:,.0f} MB, are kept in {path} for the next start",
            {"path": path, "bytes": nbytes},
        )
        return True

    def _write(self) -> bool:
        """One portion; whether there is more to do."""
        self._writer = self._writer or self._weights.writer()
        return self._writer.advance()

    def _end(self, message: str, fields: dict[str, str | int] | None = None) -> None:
        self._is_done = True
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = self._portion = self._writer = None
        tell(_logger, message, fields=fields)
