"""Histogram: percentiles of any number of values in little memory.

Buckets are 1 % wide, and each remembers the mean of what fell into it: a percentile is exact where a bucket holds one
value, and off by less than 1 % elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_BUCKETS_PER_E = 100
_ZERO = -(10**9)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of values in seconds; all 0 where there were none."""

    p50: float
    p90: float
    p99: float
    max: float


class Histogram:
    """Values of at least 0."""

    def __init__(self) -> None:
        self.count = 0
        self.max = 0.0
        self._counts: dict[int, int] = {}
        self._sums: dict[int, float] = {}

    def add(self, value: float, times: int = 1) -> None:
        """``value`` was seen ``times`` times."""
        bucket = math.floor(math.log(value) * _BUCKETS_PER_E) if value > 0.0 else _ZERO
        self._counts[bucket] = self._counts.get(bucket, 0) + times
        self._sums[bucket] = self._sums.get(bucket, 0.0) + value * times
        self.count += times
        if value > self.max:
            self.max = value

    def percentile(self, share: float, num_beyond: int = 0) -> float:
        """The least value that ``share`` of all values do not exceed (nearest rank); 0 where there are none.

        ``num_beyond`` values more are infinite.
        """
        rank = math.ceil(share * (self.count + num_beyond))
        if rank > self.count:
            return math.inf
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return self._sums[bucket] / self._counts[bucket]
        return 0.0

    def percentiles(self) -> Percentiles:
        """The ones that are reported."""
        return Percentiles(self.percentile(0.5), self.percentile(0.9), self.percentile(0.99), self.max)
