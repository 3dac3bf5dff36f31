"""BlockPool: every page there is, and which of three states it is in.

    free    in no block; contents meaningless
    cached  in a block with a hash that nobody holds: serves a prefix hit, or is evicted when pages run out
    held    in a block that some sequence's table points at

Invariant, at every moment: free + cached + held = num_pages. The pool knows blocks and the handles of their holders,
not sequences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from block_manager.block import KVBlock
from block_manager.free_queue import FreeQueue
from block_manager.page_map import PageMap
from block_manager.prefix_index import PrefixIndex


class OutOfPages(Exception):
    """More pages were asked for than are free or cached."""


class BlockPool:
    """Pages 1 .. ``num_pages``, shared by ``num_groups`` layer groups; page 0 is the null page and not counted.

    ``on_evict`` is told of a cached block just before its pages are reused, while its hash is still set.
    """

    def __init__(
        self,
        num_pages: int,
        num_groups: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_evict: Callable[[KVBlock], None] | None = None,
    ) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, not {num_pages}")
        self.num_pages = num_pages
        self.pages = PageMap(num_pages)
        self.index = PrefixIndex(num_groups)
        self.cached_pages = [0] * num_groups
        self.held_pages = [0] * num_groups
        self.shared_pages = [0] * num_groups  # held more than once, and part of held_pages
        self.evicted_pages = [0] * num_groups
        self._clock = clock
        self._on_evict = on_evict
        self._free_pages = list(range(num_pages, 0, -1))  # a stack: page 1 is taken first
        self._evictable = FreeQueue()
        self._num_cached = 0

    # ---- what there is

    @property
    def free_pages(self) -> int:
        """Pages with nothing in them."""
        return len(self._free_pages)

    @property
    def available_pages(self) -> int:
        """Pages that can be taken now: free, or cached and so evictable."""
        return len(self._free_pages) + self._num_cached

    @property
    def oldest_cached_seconds(self) -> float:
        """Age of the cached block that would be evicted next; 0 when there is none."""
        oldest = next(iter(self._evictable), None)
        return 0.0 if oldest is None else self._clock() - oldest.last_used

    def free_page_ids(self) -> Iterator[int]:
        """The next to be taken last."""
        return iter(self._free_pages)

    def next_pages(self, count: int) -> list[int]:
        """At most ``count`` free pages, in the order in which they are taken: those never taken before by number."""
        return self._free_pages[: -count - 1 : -1]

    def cached_blocks(self) -> Iterator[KVBlock]:
        """Oldest first."""
        return iter(self._evictable)

    def find(self, group: int, block_hash: bytes) -> KVBlock | None:
        """The block of ``group`` that holds these tokens, held or cached."""
        return self.index.find(group, block_hash)

    # ---- pages change hands

    def allocate(self, group: int, num_pages: int, holder: int) -> KVBlock:
        """Take a fresh block of ``num_pages`` pages for ``holder``, evicting the oldest cached blocks if need be."""
        if num_pages > self.available_pages:
            raise OutOfPages(f"{num_pages} pages wanted, {self.available_pages} available")
        free = self._free_pages
        while len(free) < num_pages:
            self._evict_oldest()
        block = KVBlock(group, tuple(free[: -num_pages - 1 : -1]))
        del free[-num_pages:]
        block.holders.add(holder)
        self.held_pages[group] += num_pages
        self.pages.set_held(block, holder)
        return block

    def touch(self, block: KVBlock, holder: int) -> None:
        """``holder``'s table points at ``block`` too."""
        if holder in block.holders:
            raise ValueError(f"{block} is held by {holder} already")
        block.holders.add(holder)
        if len(block.holders) == 1:
            self._evictable.remove(block)
            self._count_cached(block, -1)
            self.held_pages[block.group] += len(block.pages)
            self.pages.set_held(block, holder)
        else:
            if len(block.holders) == 2:
                self.shared_pages[block.group] += len(block.pages)
            self.pages.set_holders(block)

    def release(self, block: KVBlock, holder: int) -> None:
        """``holder`` lets go of ``block``; the last one leaves it cached if it has a hash, else free."""
        if holder not in block.holders:
            raise ValueError(f"{block} was released by {holder}, which does not hold it")
        block.holders.discard(holder)
        if block.holders:
            if len(block.holders) == 1:
                self.shared_pages[block.group] -= len(block.pages)
            self.pages.set_holders(block)
            return
        self.held_pages[block.group] -= len(block.pages)
        if block.block_hash is None:
            self._free_pages.extend(block.pages)
            self.pages.set_free(block)
        else:
            block.last_used = self._clock()
            self._count_cached(block, 1)
            self._evictable.append(block)
            self.pages.set_cached(block)

    def register(self, block: KVBlock, block_hash: bytes) -> None:
        """Let later prefixes find ``block``. A second block with the same tokens stays unregistered."""
        if self.index.add(block, block_hash):
            self.pages.set_hash(block)

    def unregister(self, block: KVBlock) -> None:
        """No later prefix may find ``block``: its contents are about to change."""
        self.index.remove(block, evicted=False)
        self.pages.set_hash(block)

    def drop_cache(self) -> None:
        """Free every cached page and forget every hash, held blocks' included."""
        for block in list(self._evictable):
            self._evictable.remove(block)
            self._make_free(block)
        held = [block for block in self.index.blocks() if block.holders]
        self.index.clear()
        for block in held:
            self.pages.set_hash(block)

    # ---- after a breach

    def adopt(self, orphans: list[int]) -> None:
        """Make pages that an audit found in no place free again."""
        self._free_pages.extend(orphans)
        self.pages.set_free(KVBlock(0, tuple(orphans)))

    def set_holders(self, block: KVBlock, holders: set[int]) -> None:
        """Correct the holders of a held block."""
        block.holders = holders
        self.pages.set_holders(block)

    def recount(self, held: Iterable[KVBlock]) -> None:
        """Set the sums anew, given all held blocks."""
        for counts in (self.cached_pages, self.held_pages, self.shared_pages):
            counts[:] = [0] * len(counts)
        for block in self._evictable:
            self.cached_pages[block.group] += len(block.pages)
        self._num_cached = sum(self.cached_pages)
        for block in held:
            self.held_pages[block.group] += len(block.pages)
            if len(block.holders) > 1:
                self.shared_pages[block.group] += len(block.pages)

    # ---- parts

    def _evict_oldest(self) -> None:
        block = self._evictable.pop_oldest()
        if self._on_evict is not None:
            self._on_evict(block)
        self.evicted_pages[block.group] += len(block.pages)
        self.index.remove(block, evicted=True)
        self._make_free(block)

    def _make_free(self, block: KVBlock) -> None:
        self._count_cached(block, -1)
        self._free_pages.extend(block.pages)
        self.pages.set_free(block)

    def _count_cached(self, block: KVBlock, sign: int) -> None:
        self.cached_pages[block.group] += sign * len(block.pages)
        self._num_cached += sign * len(block.pages)
