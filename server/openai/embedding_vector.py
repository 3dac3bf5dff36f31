"""EmbeddingVector: what the engine pooled, as the API gives it.

Invariants: a vector has unit length, after it was cut too; both encodings carry the same float32 numbers.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array

from server.errors import internal_error


class EmbeddingVector:
    """The first ``dimensions`` of ``pooled`` (little-endian float32), or all of them, scaled to unit length.

    Nothing but zeros stays zeros. ApiError 500 for numbers that are not finite: they are no embedding.
    """

    def __init__(self, pooled: bytes, dimensions: int | None) -> None:
        values = array("f")
        values.frombytes(pooled)
        if sys.byteorder == "big":
            values.byteswap()
        cut = values[:dimensions]
        length = math.hypot(*cut)
        if not math.isfinite(length):
            raise internal_error()
        self._values = array("f", [value / length for value in cut]) if length else cut

    def floats(self) -> list[float]:
        return self._values.tolist()

    def base64(self) -> str:
        """Little-endian float32 in base64, as OpenAI's clients ask for it."""
        values = self._values[:]
        if sys.byteorder == "big":
            values.byteswap()
        return base64.b64encode(values.tobytes()).decode()
