"""PrefixSharing: the plan by which a step reads pages once that several of its decodes begin with.

Asks the order of the block tables who shares what, lets groups be chosen, and the cost model say whether they pay. Only
full pages before a sequence's newest token are shared, and only by sequences that compute one token. What depends on
the rows of the step alone is kept until they change.

Knows rows, lengths and page counts, not requests or page ids. Invariant: all that a plan calls shared is the same in
the tables of the step it was made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.prefix_order import PrefixOrder
from kernels.gpu.shared_prefix import choose_groups
from kernels.gpu.sharing_cost import SharedReads, SharingCost

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PrefixBounds:
    """Plain ints of ``kernels.attention.SharedPrefix``."""

    largest_group: int
    max_prefix_len: int
    max_own_len: int


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """``kernels.attention.SharedPrefix`` on the host: rows of the step, and tokens."""

    members: Array
    group_starts: Array
    prefix_lens: Array
    bounds: PrefixBounds


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The groups among the decodes of a step, which hold for any step of the same rows; no ``reads`` without groups."""

    version: int
    rows: Array
    counts: Array
    members: Array
    group_starts: Array
    prefix_lens: Array
    largest_group: int
    max_prefix_len: int
    reads: SharedReads | None


class PrefixSharing:
    """Plans for steps over the tables of ``order``, whose pages hold ``block_size`` tokens."""

    def __init__(self, order: PrefixOrder, cost: SharingCost, block_size: int) -> None:
        self._order = order
        self._cost = cost
        self._block_size = block_size
        self._chosen: _Chosen | None = None

    def plan(self, rows: Array, counts: Array, seq_lens: Array, *, is_recorded: bool) -> PrefixPlan | None:
        """For sequences in ``rows`` of the tables that compute ``counts`` tokens; None where sharing does not pay.

        ``seq_lens`` count this step's tokens. ``is_recorded``: without sharing, the step replays a graph.
        """
        chosen = self._chosen
        if chosen is None or not self._holds(chosen, rows, counts):
            chosen = self._chosen = self._choose(rows, counts, seq_lens)
        if chosen.reads is None:
            return None
        if not self._cost.pays(chosen.reads, seq_lens, int(counts.sum()), is_recorded=is_recorded):
            return None
        own_lens = (seq_lens - chosen.prefix_lens)[counts == 1]
        bounds = PrefixBounds(chosen.largest_group, chosen.max_prefix_len, int(own_lens.max()))
        return PrefixPlan(chosen.members, chosen.group_starts, chosen.prefix_lens, bounds)

    def _holds(self, chosen: _Chosen, rows: Array, counts: Array) -> bool:
        return (
            chosen.version == self._order.version
            and np.array_equal(chosen.rows, rows)
            and np.array_equal(chosen.counts, counts)
        )

    def _choose(self, rows: Array, counts: Array, seq_lens: Array) -> _Chosen:
        decodes = np.flatnonzero(counts == 1)
        order, num_shared = self._order.neighbours(rows[decodes])
        decodes = decodes[order]
        full_pages = (seq_lens[decodes] - 1) // self._block_size
        num_shared = np.minimum(num_shared, np.minimum(full_pages[1:], full_pages[:-1]))
        groups = choose_groups(num_shared, self._cost.least_gain / self._block_size)
        members = decodes[groups.members]
        prefix_lens = np.zeros(len(rows), dtype=np.int64)
        prefix_lens[members] = np.repeat(groups.num_pages * self._block_size, groups.sizes)
        reads = SharedReads(groups.saved_pages * self._block_size, len(members)) if len(members) else None
        return _Chosen(
            version=self._order.version,
            rows=rows,
            counts=counts,
            members=members,
            group_starts=np.append(0, np.cumsum(groups.sizes)),
            prefix_lens=prefix_lens,
            largest_group=int(groups.sizes.max(initial=0)),
            max_prefix_len=int(prefix_lens.max(initial=0)),
            reads=reads,
        )
