"""PackedKeeper: writes the weights that a start has packed to disk, for the next start to map.

While the engine has nothing to do, so that neither a start nor a request waits for it. A disk that cannot take them
costs a line in the log, and the next start the time.
"""

from __future__ import annotations

import logging

from engine.log_format import tell
from models.packed_file import PackedFileWriter
from models.packed_weights import PackedWeights

_logger = logging.getLogger("octavo.engine")


class PackedKeeper:
    """Of ``weights`` that are all there."""

    def __init__(self, weights: PackedWeights) -> None:
        self._path = weights.path
        self._nbytes = weights.nbytes
        self._writer: PackedFileWriter | None = None
        try:
            self._writer = weights.writer()
        except OSError as error:
            self._give_up(error)

    @property
    def is_done(self) -> bool:
        return self._writer is None

    def advance(self) -> bool:
        if self._writer is None:
            return False
        try:
            if self._writer.advance():
                return True
        except OSError as error:
            self._give_up(error)
            return True
        self._writer = None
        tell(
            _logger,
            f"packed weights, {self._nbytes / 1e6:,.0f} MB, are kept in {self._path} for the next start",
            fields={"path": str(self._path), "bytes": self._nbytes},
        )
        return True

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        reason = error.strerror or str(error)
        tell(_logger, f"packed weights cannot be kept in {self._path} ({reason}): the next start packs them again")
