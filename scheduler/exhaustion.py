"""Exhaustion: after how many steps running sequences, each growing by a token a step, will have taken every page.

    pages taken                              ┌─ a sequence ends, and gives back what it holds
        ▲                        ┌───┐   ┌───┘
        │               ┌────────┘   └───┤
        │      ┌────────┘                └────────
        └──────┴─────────────────────────────────► steps

Block by block, not a fluid: a sequence takes its next page when its last is full. Sequences that never end would take
everything; so what it says depends on when they are expected to end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of one sequence in one layer group.

    It has ``slack`` free slots in its last block and takes ``pages_per_block`` pages for each block that it needs
    beyond, in its first ``growing_steps`` steps. After ``steps`` steps it gives those and ``held_pages`` back.
    """

    slack: int
    pages_per_block: int
    growing_steps: int
    steps: int
    held_pages: float


class _Demand:
    """Pages taken after k steps, while nobody stops: sequences whose slack is the same take theirs together."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._pages = [0] * block_size  # by slack
        self._pages_per_block = 0
        self._constant = 0.0

    def grow(self, growth: Growth, sign: int = 1) -> None:
        self._pages[growth.slack] += sign * growth.pages_per_block
        self._pages_per_block += sign * growth.pages_per_block

    def keep(self, pages: float) -> None:
        """So many are taken (or, negative, given back) for good."""
        self._constant += pages

    def after(self, step: int) -> float:
        blocks, rest = divmod(step, self._block_size)
        return self._constant + blocks * self._pages_per_block + sum(self._pages[:rest])


def steps_until_exhausted(growths: Iterable[Growth], available_pages: int, block_size: int) -> int | None:
    """The first step after which no page is available; 0 where none is now, None where all end before.

    O(n log n) for n growths.
    """
    growths = list(growths)
    if growths and available_pages < 1:
        return 0
    demand = _Demand(block_size)
    events: list[tuple[int, bool, Growth]] = []
    for growth in growths:
        demand.grow(growth)
        if growth.growing_steps < growth.steps:
            events.append((growth.growing_steps, False, growth))
        events.append((growth.steps, True, growth))
    reached = 0
    for step, ends, growth in sorted(events, key=lambda event: event[:2]):
        if step > reached:
            if demand.after(step) >= available_pages:
                between = range(reached + 1, step + 1)
                return between[bisect_left(between, float(available_pages), key=demand.after)]
            reached = step
        taken = _taken(growth, block_size)
        if not ends:
            demand.grow(growth, -1)
            demand.keep(taken)
        elif growth.growing_steps < growth.steps:
            demand.keep(-taken - growth.held_pages)
        else:
            demand.grow(growth, -1)
            demand.keep(-growth.held_pages)
    return None


def _taken(growth: Growth, block_size: int) -> int:
    """Pages by the step in which it grows last."""
    beyond = min(growth.growing_steps, growth.steps) - growth.slack
    return growth.pages_per_block * -(-max(0, beyond) // block_size)
