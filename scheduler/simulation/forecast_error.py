"""ForecastError: how far told times were from real ones; RetryWatch: when a place in the queue really came free.

absolute error   |told - real|, in seconds
ratio            told / real
within 2         real / 2 <= told <= 2 real
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from scheduler.outlook import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS
from scheduler.simulation.histogram import Histogram


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Of ``count`` comparisons; the medians are 0 where there were none. ``within_2`` is a share, 0 to 1."""

    count: int
    median_absolute_error: float
    median_ratio: float
    within_2: float


class ForecastError:
    """Pairs of a told and a real time, in seconds. A ratio needs a real time above 0: others are not compared."""

    def __init__(self) -> None:
        self._errors = Histogram()
        self._ratios = Histogram()
        self._within_2 = 0

    def compare(self, told: float, real: float) -> None:
        """``told`` was said, and ``real`` came to pass."""
        if real <= 0.0:
            return
        self._errors.add(abs(told - real))
        self._ratios.add(told / real)
        self._within_2 += real / 2 <= told <= real * 2

    def summary(self) -> ErrorSummary:
        """What is reported."""
        count = self._errors.count
        return ErrorSummary(
            count, self._errors.percentile(0.5), self._ratios.percentile(0.5), self._within_2 / count if count else 0.0
        )


class RetryWatch:
    """Compares each Retry-After with the time until so many places came free that one was for this client.

    Clients that are refused in one step come one after the other: the first gets the first place. What is told is
    never below `MIN_RETRY_SECONDS` nor above `MAX_RETRY_SECONDS`, so real times are cut to that range too.
    """

    def __init__(self) -> None:
        self.error = ForecastError()
        self._pending: list[tuple[int, float, float]] = []  # places freed, time, told seconds

    def refused(self, place: int, now: float, told: float) -> None:
        """A client was told to come back in ``told`` seconds; it gets the ``place``-th place that ever comes free."""
        heapq.heappush(self._pending, (place, now, told))

    def freed(self, num_places: int, now: float) -> None:
        """By ``now``, ``num_places`` places have come free since the start."""
        while self._pending and self._pending[0][0] <= num_places:
            _, at, told = heapq.heappop(self._pending)
            self.error.compare(told, min(MAX_RETRY_SECONDS, max(MIN_RETRY_SECONDS, now - at)))
