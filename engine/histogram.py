"""Histogram: how often a value fell between which bounds, as a message that can be sent and added to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec


class Histogram(msgspec.Struct, kw_only=True):
    """``counts`` has one entry for each of the rising upper ``bounds``, and one for what lies above them all."""

    bounds: list[float]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: Sequence[float]) -> Histogram:
        return cls(bounds=list(bounds), counts=[0] * (len(bounds) + 1))

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
