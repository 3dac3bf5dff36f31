"""PageMap: one row per page, kept up to date as pages change hands, so that a look at all of them is a copy.

    page     0     1     2     3    ...
    state    -     HELD  FREE  CACHED
    group    -     0     0     1
    refs     -     2     0     0
    holder   -     4     0     0        handle of one holder, 0 for none
    ...

Columns are flat arrays: 100,000 pages are copied in well under a millisecond, where as many objects would take a
hundred times that. It knows pages and handles; names of sequences are the manager's.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass

from block_manager.block import KVBlock


class PageState(enum.IntEnum):
    FREE = 0
    CACHED = 1
    HELD = 2


@dataclass(frozen=True, slots=True)
class PageColumns:
    """A copy of every column, indexed by page id; index 0 is the null page. ``last_used`` is in the clock's seconds."""

    states: bytes
    groups: bytes
    ref_counts: array[int]
    holders: array[int]
    hash_prefixes: array[int]
    last_used: array[float]


def _hash_prefix(block: KVBlock) -> int:
    return 0 if block.block_hash is None else int.from_bytes(block.block_hash[-4:], "big")


class PageMap:
    """Rows for pages 0 .. ``num_pages``."""

    def __init__(self, num_pages: int) -> None:
        rows = num_pages + 1
        self._states = bytearray(rows)
        self._groups = bytearray(rows)
        self._ref_counts = array("H", bytes(2 * rows))
        self._holders = array("I", bytes(4 * rows))
        self._hash_prefixes = array("I", bytes(4 * rows))
        self._last_used = array("d", bytes(8 * rows))

    def holder(self, page: int) -> int:
        """One of the page's holders; 0 when it has none."""
        return self._holders[page]

    def last_used(self, page: int) -> float:
        """When the last holder of a cached page let go of it, in the clock's seconds."""
        return self._last_used[page]

    def problems(self, page: int, where: str, state: PageState, block: KVBlock | None) -> list[str]:
        """What the row of ``page``, which is part of ``block`` or else free, says wrongly."""
        shown = PageState(self._states[page])
        if shown is not state:
            return [f"page {page} is in {where}, but the page map shows it as {shown.name}"]
        wanted = (0, 0) if block is None else (len(block.holders), _hash_prefix(block))
        row = (self._ref_counts[page], self._hash_prefixes[page])
        found = []
        if row != wanted:
            found.append(f"page {page} in {where} has ref_count and hash {wanted}, but the page map shows {row}")
        if block is not None and self._groups[page] != block.group:
            found.append(f"page {page} in {where} is of group {block.group}; the page map shows {self._groups[page]}")
        holder = self._holders[page]
        if holder not in block.holders if block is not None and block.holders else holder:
            found.append(f"page {page} in {where} is not held by sequence {holder}, which the page map shows")
        return found

    def set_held(self, block: KVBlock, holder: int) -> None:
        """``block`` went from free or cached to one holder."""
        for page in block.pages:
            self._states[page] = PageState.HELD
            self._groups[page] = block.group
            self._ref_counts[page] = 1
            self._holders[page] = holder

    def set_holders(self, block: KVBlock) -> None:
        """The holders of a held block changed, and some are left."""
        count, holder = len(block.holders), next(iter(block.holders))
        for page in block.pages:
            self._ref_counts[page] = count
            self._holders[page] = holder

    def set_cached(self, block: KVBlock) -> None:
        """The last holder of ``block`` let go of it, and its contents stay."""
        for page in block.pages:
            self._states[page] = PageState.CACHED
            self._ref_counts[page] = 0
            self._holders[page] = 0
            self._last_used[page] = block.last_used

    def set_free(self, block: KVBlock) -> None:
        """``block`` is gone."""
        for page in block.pages:
            self._states[page] = PageState.FREE
            self._ref_counts[page] = 0
            self._holders[page] = 0
            self._hash_prefixes[page] = 0

    def set_hash(self, block: KVBlock) -> None:
        """``block`` got a hash, or lost it."""
        prefix = _hash_prefix(block)
        for page in block.pages:
            self._hash_prefixes[page] = prefix

    def copy(self) -> PageColumns:
        """All columns as they are now."""
        return PageColumns(
            bytes(self._states),
            bytes(self._groups),
            self._ref_counts[:],
            self._holders[:],
            self._hash_prefixes[:],
            self._last_used[:],
        )
