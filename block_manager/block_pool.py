"""BlockPool: every page there is, and which of three states it is in.

    free    in no block; contents meaningless
    cached  in a block with a hash that nobody holds: serves a prefix hit, or is evicted when pages run out
    held    in a block that some sequence's table points at

Invariant, at every moment: free + cached + held = num_pages. The pool knows blocks, not sequences.
"""

from __future__ import annotations

from block_manager.block import KVBlock
from block_manager.free_queue import FreeQueue


class OutOfPages(Exception):
    """More pages were asked for than are free or cached."""


class BlockPool:
    """Pages 1 .. ``num_pages``, shared by ``num_groups`` layer groups; page 0 is the null page and not counted."""

    def __init__(self, num_pages: int, num_groups: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, not {num_pages}")
        self.num_pages = num_pages
        self.cached_pages = [0] * num_groups
        self.held_pages = [0] * num_groups
        self.evicted_blocks = 0
        self._free_pages = list(range(num_pages, 0, -1))  # a stack: page 1 is taken first
        self._evictable = FreeQueue()
        self._by_hash: list[dict[bytes, KVBlock]] = [{} for _ in range(num_groups)]

    @property
    def free_pages(self) -> int:
        """Pages with nothing in them."""
        return len(self._free_pages)

    @property
    def available_pages(self) -> int:
        """Pages that can be taken now: free, or cached and so evictable."""
        return len(self._free_pages) + sum(self.cached_pages)

    def find(self, group: int, block_hash: bytes) -> KVBlock | None:
        """The block of ``group`` that holds these tokens, held or cached."""
        return self._by_hash[group].get(block_hash)

    def allocate(self, group: int, num_pages: int) -> KVBlock:
        """Take a fresh block of ``num_pages`` pages with ref_count 1, evicting the oldest cached blocks if need be."""
        if num_pages > self.available_pages:
            raise OutOfPages(f"{num_pages} pages wanted, {self.available_pages} available")
        while len(self._free_pages) < num_pages:
            self._evict_oldest()
        block = KVBlock(group, tuple(self._free_pages.pop() for _ in range(num_pages)))
        block.ref_count = 1
        self.held_pages[group] += num_pages
        return block

    def touch(self, block: KVBlock) -> None:
        """One more table points at ``block``."""
        if block.ref_count == 0:
            self._evictable.remove(block)
            self.cached_pages[block.group] -= len(block.pages)
            self.held_pages[block.group] += len(block.pages)
        block.ref_count += 1

    def release(self, block: KVBlock) -> None:
        """One table less points at ``block``; the last one leaves it cached if it has a hash, else free."""
        if block.ref_count < 1:
            raise ValueError(f"{block} was released more often than it was taken")
        block.ref_count -= 1
        if block.ref_count:
            return
        self.held_pages[block.group] -= len(block.pages)
        if block.block_hash is None:
            self._free_pages.extend(block.pages)
        else:
            self.cached_pages[block.group] += len(block.pages)
            self._evictable.append(block)

    def register(self, block: KVBlock, block_hash: bytes) -> None:
        """Let later prefixes find ``block``. A second block with the same tokens stays unregistered."""
        by_hash = self._by_hash[block.group]
        if block.block_hash is None and block_hash not in by_hash:
            block.block_hash = block_hash
            by_hash[block_hash] = block

    def drop_cache(self) -> None:
        """Free every cached page and forget every hash, held blocks' included."""
        while len(self._evictable):
            self._evict_oldest()
        for by_hash in self._by_hash:
            for block in by_hash.values():
                block.block_hash = None
            by_hash.clear()

    def _evict_oldest(self) -> None:
        block = self._evictable.pop_oldest()
        assert block.block_hash is not None
        del self._by_hash[block.group][block.block_hash]
        block.block_hash = None
        self.cached_pages[block.group] -= len(block.pages)
        self._free_pages.extend(block.pages)
        self.evicted_blocks += 1

    def audit(self, holders: dict[KVBlock, list[str]]) -> list[str]:
        """Check every page against ``holders``, the table owners of each held block; returns what is wrong."""
        problems: list[str] = []
        places: dict[int, str] = {}

        def place(page: int, where: str) -> None:
            if not 1 <= page <= self.num_pages:
                problems.append(f"page {page} in {where} does not exist")
            elif page in places:
                problems.append(f"page {page} is in {places[page]} and in {where}")
            else:
                places[page] = where

        for page in self._free_pages:
            place(page, "the free list")
        cached, held = [0] * len(self.cached_pages), [0] * len(self.held_pages)
        for block in self._evictable:
            cached[block.group] += len(block.pages)
            if block.ref_count or block.block_hash is None:
                problems.append(f"{block} is in the free queue")
            for page in block.pages:
                place(page, f"cached {block}")
        for block, owners in holders.items():
            held[block.group] += len(block.pages)
            if block.ref_count != len(owners):
                problems.append(f"{block} is held by {', '.join(owners)}: {len(owners)} tables")
            for page in block.pages:
                place(page, f"the table of {owners[0]}")
        problems += [f"page {page} is nowhere" for page in range(1, self.num_pages + 1) if page not in places]
        if (cached, held) != (self.cached_pages, self.held_pages):
            problems.append(f"counted cached {cached}, held {held}; kept {self.cached_pages}, {self.held_pages}")
        return problems + self._audit_hashes(holders)

    def _audit_hashes(self, holders: dict[KVBlock, list[str]]) -> list[str]:
        """A block has a hash exactly where that hash finds it, and only blocks that are cached or held are found."""
        problems: list[str] = []
        cached = set(self._evictable)
        for group, by_hash in enumerate(self._by_hash):
            for block_hash, block in by_hash.items():
                if block.block_hash != block_hash or block.group != group:
                    problems.append(f"{block} is registered under another hash or group")
                elif block.ref_count and block not in holders:
                    problems.append(f"{block} counts holders, but no table points at it")
                elif not block.ref_count and block not in cached:
                    problems.append(f"{block} is registered, but neither cached nor in a table")
        named = [(block, f"cached {block}") for block in cached]
        named += [(block, f"{block} of {owners[0]}") for block, owners in holders.items()]
        for block, name in named:
            if block.block_hash is not None and self.find(block.group, block.block_hash) is not block:
                problems.append(f"{name} cannot be found by its hash")
        return problems
