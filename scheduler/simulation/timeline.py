"""Timeline: the course of a run in a bounded number of points, for a plot."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """State in one step, which begins ``seconds`` after time 0; ``num_preemptions`` since the start."""

    seconds: float
    held_pages: int
    num_running: int
    num_waiting: int
    num_preemptions: int


class Timeline:
    """Every ``stride``-th step. Whenever ``max_moments`` are reached, every other one goes, and the stride doubles."""

    def __init__(self, max_moments: int = 4000) -> None:
        self.moments: list[Moment] = []
        self.stride = 1
        self._max_moments = max_moments

    def add(self, step: int, moment: Moment) -> None:
        """Remember a step, numbered from 0, if its turn has come."""
        if step % self.stride:
            return
        self.moments.append(moment)
        if len(self.moments) >= self._max_moments:
            del self.moments[1::2]
            self.stride *= 2
