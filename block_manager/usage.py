"""What anyone may ask about pages: how many, in what state, how full, whose.

Values only; `BlockManager` fills them in.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise

from block_manager.page_map import PageColumns, PageState


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """Pages of one layer group. ``shared`` are held by more than one sequence and part of ``held``.

    ``wasted_slots`` are slots of held blocks that no token has filled yet, in tokens x pages; ``held_slots`` is what
    they are part of.
    """

    name: str
    cached: int
    held: int
    shared: int
    evicted: int
    held_slots: int
    wasted_slots: int


@dataclass(frozen=True, slots=True)
class PageUsage:
    """The whole pool: ``free`` + all ``cached`` + all ``held`` = ``total``, in pages."""

    total: int
    free: int
    groups: tuple[GroupUsage, ...]
    oldest_cached_seconds: float

    @property
    def cached(self) -> int:
        return sum(group.cached for group in self.groups)

    @property
    def held(self) -> int:
        return sum(group.held for group in self.groups)

    @property
    def waste(self) -> float:
        """Share of held slots that are not filled, 0 to 1."""
        held = sum(group.held_slots for group in self.groups)
        return sum(group.wasted_slots for group in self.groups) / held if held else 0.0


@dataclass(frozen=True, slots=True)
class PageForecast:
    """What a scheduler needs to predict pages.

    ``available`` can be taken now: ``free``, or ``reclaimable`` by eviction. ``pinned`` are held. ``next_step`` is
    what the open sequences take if each grows by one token.
    """

    free: int
    reclaimable: int
    pinned: int
    next_step: int

    @property
    def available(self) -> int:
        return self.free + self.reclaimable


@dataclass(frozen=True, slots=True)
class SequenceUsage:
    """One open sequence: pages it holds now and held at most, and pages x seconds since it was opened."""

    held_pages: int
    peak_pages: int
    page_seconds: float


@dataclass(frozen=True, slots=True)
class PageRow:
    """One page, as `PageSnapshot.row` shows it. ``fill`` in tokens; ``last_used`` is None while it is held or free."""

    page: int
    state: PageState
    group: str | None
    owners: tuple[str, ...]
    ref_count: int
    fill: int
    hash_prefix: int
    last_used: float | None


@dataclass(frozen=True)
class PageSnapshot:
    """Every page at one moment, in columns: the source of a live page map.

    ``fills[page]`` in tokens. ``owner_names`` maps a handle in ``columns.holders`` to its sequence. Where some pages
    are shared, ``tables`` has by group the page ids of all sequences one after the other, in the order of
    ``owner_names``, and ``table_ends`` where each ends: one copy, since thousands of small ones take a millisecond.
    """

    columns: PageColumns
    fills: bytes
    group_names: tuple[str, ...]
    owner_names: dict[int, str]
    tables: tuple[bytes, ...]
    table_ends: tuple[list[int], ...]

    def row(self, page: int) -> PageRow:
        """One page, with names for handles."""
        columns = self.columns
        state = PageState(columns.states[page])
        owners: tuple[str, ...] = ()
        if state is PageState.HELD and columns.ref_counts[page] == 1:
            owners = (self.owner_names[columns.holders[page]],)
        elif state is PageState.HELD:
            owners = self._owners(page, columns.groups[page])
        return PageRow(
            page=page,
            state=state,
            group=None if state is PageState.FREE else self.group_names[columns.groups[page]],
            owners=owners,
            ref_count=columns.ref_counts[page],
            fill=self.fills[page],
            hash_prefix=columns.hash_prefixes[page],
            last_used=columns.last_used[page] if state is PageState.CACHED else None,
        )

    def _owners(self, page: int, group: int) -> tuple[str, ...]:
        """Whose tables have the page, by name."""
        pages = array("I", self.tables[group])
        spans = pairwise((0, *self.table_ends[group]))
        owners = (
            name for name, span in zip(self.owner_names.values(), spans, strict=True) if page in pages[slice(*span)]
        )
        return tuple(sorted(owners))
