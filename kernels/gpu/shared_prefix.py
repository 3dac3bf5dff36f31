"""Which groups of sequences read the pages they share once: chosen on the host, from sequences in a good order.

The order is that of ``engine.prefix_order``: sequences with the longest common prefixes are neighbours, so that what
any two share is the least that neighbours between them share. A sequence belongs to one group at most. Groups are
chosen to save many reads of pages, (members - 1) x pages each: from the longest prefixes to the shortest, a prefix
takes the sequences that are in no group yet, and those of groups that gain by it. ``kernels.gpu.cascade`` reads them.

Pure numpy, and as many steps of Python as there are different prefixes, not pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Sequences, by their place in the order, whose first pages are the same: ``members`` one group after the other.

    ``sizes`` and ``num_pages`` [num_groups]: members of each group, and pages that all of them share.
    """

    members: Array
    sizes: Array
    num_pages: Array

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def saved_pages(self) -> int:
        """Reads of pages less than if every sequence read its own."""
        return int(((self.sizes - 1) * self.num_pages).sum())


@dataclass(slots=True)
class _Group:
    """Those of the places ``start : end`` that no group chosen before has."""

    start: int
    end: int
    size: int
    num_pages: int

    @property
    def saved_pages(self) -> int:
        return (self.size - 1) * self.num_pages


def choose_groups(num_shared: Array, least_gain: float = 0.0) -> PrefixGroups:
    """Groups among places of which ``i`` and ``i + 1`` have the first ``num_shared[i]`` pages in common.

    Groups that save no more than ``least_gain`` reads of pages for each of their members are left out.
    """
    padded = np.zeros(len(num_shared) + 2, dtype=np.int64)
    padded[1:-1] = np.where(num_shared > least_gain, num_shared, 0)
    chosen: list[_Group] = []
    open_prefixes: list[tuple[int, int]] = []  # first place and pages, each with more pages than the one before
    steps = np.flatnonzero(padded[1:] != padded[:-1])
    for place, num_pages in zip(steps.tolist(), padded[steps + 1].tolist(), strict=True):
        start = place
        while open_prefixes and open_prefixes[-1][1] > num_pages:
            start, ending = open_prefixes.pop()
            _join(chosen, start, place + 1, ending)
        if num_pages and not (open_prefixes and open_prefixes[-1][1] == num_pages):
            open_prefixes.append((start, num_pages))
    owners = np.full(len(num_shared) + 1, -1)
    for number in range(len(chosen) - 1, -1, -1):  # groups come after those that lie inside them
        owners[chosen[number].start : chosen[number].end] = number
    sizes = np.array([group.size for group in chosen], dtype=np.int64)
    pages = np.array([group.num_pages for group in chosen], dtype=np.int64)
    gains = np.append((sizes - 1) * pages > least_gain * sizes, False)
    order = np.argsort(owners, kind="stable")
    return PrefixGroups(order[gains[owners[order]]], sizes[gains[:-1]], pages[gains[:-1]])


def _join(chosen: list[_Group], start: int, end: int, num_pages: int) -> None:
    """All places of ``start : end`` as one group, but for groups among them that save more by themselves."""
    first = len(chosen)
    while first and chosen[first - 1].start >= start:
        first -= 1
    if first == len(chosen):
        chosen.append(_Group(start, end, end - start, num_pages))
        return
    inner = chosen[first:]
    kept = [group for group in inner if group.saved_pages > group.size * num_pages]
    joined = _Group(start, end, end - start - sum(group.size for group in kept), num_pages)
    if joined.saved_pages > sum(group.saved_pages for group in inner if group not in kept):
        chosen[first:] = [*kept, joined]
