"""Page search: the fewest pages that meet a target, by running the simulation at some sizes.

It assumes that more pages never do worse. That holds but for small noise, which is why sizes are tried in steps of two
significant digits and no finer. It knows runs by their reports only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.simulation.report import Report


@dataclass(frozen=True, slots=True)
class Target:
    """What a size must reach: p99 of the TTFT in seconds, and preemptions for each request.

    A request that was refused counts as one whose first token never comes.
    """

    ttft: float
    preemptions: float

    def is_met(self, report: Report) -> bool:
        """Whether a run does."""
        return report.ttft_p99_of_all <= self.ttft and report.preemption_share <= self.preemptions


def size(index: int) -> int:
    """The ``index``-th number, from 1, of at most two significant digits: 1, 2 .. 99, 100, 110 .. 990, 1000, 1100 .."""
    zeros = max(0, (index - 10) // 90)
    return int((index - 90 * zeros) * 10**zeros)


def index_of(num_pages: int) -> int:
    """The index of the first such number that is not below ``num_pages``."""
    zeros = max(0, len(str(num_pages)) - 2)
    return int(-(-num_pages // 10**zeros) + 90 * zeros)


class PageSearch:
    """``run(num_pages)`` simulates; ``tried`` are the reports of all sizes that were looked at, in order of pages."""

    def __init__(self, run: Callable[[int], Report], target: Target) -> None:
        self._run = run
        self._target = target
        self._reports: dict[int, Report] = {}

    @property
    def tried(self) -> list[Report]:
        return [self._reports[num_pages] for num_pages in sorted(self._reports)]

    def smallest(self, least: int, most: int) -> int | None:
        """Fewest pages, from ``least`` to ``most``; None when not even ``most`` meets the target.

        With ``most`` pages nobody should wait for any: what they hold then is the second size that is tried.
        """
        low, high = index_of(least), index_of(most)
        if not self._meets(high):
            return None
        middle = max(low, index_of(self._reports[size(high)].peak_held_pages))
        while low < high:
            if self._meets(middle):
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        return size(high)

    def _meets(self, index: int) -> bool:
        num_pages = size(index)
        if num_pages not in self._reports:
            self._reports[num_pages] = self._run(num_pages)
        return self._target.is_met(self._reports[num_pages])
