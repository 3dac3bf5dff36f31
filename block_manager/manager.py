"""BlockManager: the block tables of all sequences, over one pool.

It knows sequences by id, positions by number and nothing of requests, models or tensors. A sequence's life:

    match_prefix -> admit -> (grow -> step -> commit)* -> free

    block table of a windowed group, block_size 16, window 32, 70 tokens computed:

      position   0        16       32       48       64     70
                 [null]   [null]   [page 7] [page 2] [page 9..]
                 returned when the window moved on   held, the last one partly filled

Tables are indexed by absolute position, so a block never moves in its table. Pages are taken in `admit` and `grow`,
before the step that fills them, and become findable by others in `commit`, after it succeeded: a failed step caches
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from block_manager.block import NULL_PAGE, KVBlock
from block_manager.block_pool import BlockPool
from block_manager.groups import LayerGroup
from block_manager.hashing import BlockHashes


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Cached blocks that a new sequence can share: its first ``num_tokens`` tokens need no computing.

    ``blocks[g]`` maps block index to block for group g; windowed groups list only what the window still needs.
    """

    num_tokens: int
    blocks: tuple[dict[int, KVBlock], ...]


@dataclass(frozen=True, slots=True)
class PageUsage:
    """Pages by state; free + sum(cached) + sum(held) = total."""

    total: int
    free: int
    cached: tuple[int, ...]
    held: tuple[int, ...]


class _Table:
    """Blocks of one sequence in one group, and their pages as the kernels' tables want them.

    ``blocks[i]`` is None where ``pages[i]`` is null. Blocks before ``first_held`` are all null.
    """

    __slots__ = ("blocks", "first_held", "pages")

    def __init__(self) -> None:
        self.blocks: list[KVBlock | None] = []
        self.pages: list[tuple[int, ...]] = []
        self.first_held = 0


class BlockManager:
    """Block tables and pages of ``groups`` over a pool of ``num_pages`` pages of ``block_size`` tokens."""

    def __init__(
        self, groups: Sequence[LayerGroup], num_pages: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        self.groups = tuple(groups)
        self.block_size = block_size
        self.pool = BlockPool(num_pages, len(self.groups))
        self._caching = enable_prefix_caching
        self._null_pages = tuple((NULL_PAGE,) * group.pages_per_block for group in self.groups)
        self._tables: dict[str, tuple[_Table, ...]] = {}
        self._num_hashed: dict[str, int] = {}

    # ---- what a sequence would need

    def match_prefix(self, hashes: BlockHashes, num_tokens: int) -> PrefixMatch:
        """The longest prefix of whole blocks, at most ``num_tokens - 1`` tokens, that every group still has.

        The last token is always computed anew, for its logits. A full group needs all blocks of the prefix; a
        windowed one only those that the next position can still see.
        """
        empty = PrefixMatch(0, tuple({} for _ in self.groups))
        if not self._caching:
            return empty
        length = min(len(hashes), (num_tokens - 1) // self.block_size)
        shrunk = True
        while shrunk and length:
            shrunk = False
            for index, group in enumerate(self.groups):
                usable = self._longest_hit(index, group, hashes, length)
                if usable < length:
                    length, shrunk = usable, True
        if not length:
            return empty
        found = []
        for index, group in enumerate(self.groups):
            first = group.first_needed_block(length * self.block_size, self.block_size)
            blocks = {i: self.pool.find(index, hashes[i]) for i in range(first, length)}
            found.append({i: block for i, block in blocks.items() if block is not None})
        return PrefixMatch(length * self.block_size, tuple(found))

    def _longest_hit(self, index: int, group: LayerGroup, hashes: BlockHashes, limit: int) -> int:
        """Most blocks, at most ``limit``, after which group ``index`` has every block that is still needed."""
        if group.window is None:
            return next((i for i in range(limit) if self.pool.find(index, hashes[i]) is None), limit)
        end = limit
        for i in range(limit - 1, -1, -1):
            if self.pool.find(index, hashes[i]) is None:
                end = i
            elif i <= group.first_needed_block(end * self.block_size, self.block_size):
                return end
        return end

    def pages_to_admit(self, match: PrefixMatch, num_tokens: int, chunk: int) -> int:
        """Available pages that a new sequence takes to reach ``num_tokens``: fresh ones, and hits nobody holds now."""
        pages = 0
        for group, blocks in zip(self.groups, match.blocks, strict=True):
            first = group.first_needed_block(match.num_tokens, self.block_size)
            shared = sum(1 for block in blocks.values() if block.ref_count)
            to_take = -(-num_tokens // self.block_size) - first - shared
            # shared blocks slide out of a window too, so they do not lessen the most it holds later
            most = group.max_blocks(num_tokens, chunk, self.block_size)
            pages += min(to_take, most) * group.pages_per_block
        return pages

    def pages_to_reach(self, sequence_id: str, num_tokens: int) -> int:
        """Fresh pages that ``sequence_id`` needs before it can compute positions below ``num_tokens``."""
        blocks = -(-num_tokens // self.block_size)
        return sum(
            max(0, blocks - len(table.blocks)) * group.pages_per_block
            for group, table in zip(self.groups, self._tables[sequence_id], strict=True)
        )

    @property
    def available_pages(self) -> int:
        """Pages that can be taken now: free or cached."""
        return self.pool.available_pages

    # ---- a sequence's life

    def admit(self, sequence_id: str, match: PrefixMatch, num_tokens: int) -> bool:
        """Open a table with the matched blocks and room for positions below ``num_tokens``; False: not enough pages."""
        if sequence_id in self._tables:
            raise ValueError(f"sequence {sequence_id} has a table already")
        hits = [block for blocks in match.blocks for block in blocks.values()]
        idle = sum(len(block.pages) for block in hits if not block.ref_count)
        prefix_blocks = match.num_tokens // self.block_size
        fresh = -(-num_tokens // self.block_size) - prefix_blocks
        if idle + fresh * sum(group.pages_per_block for group in self.groups) > self.pool.available_pages:
            return False
        for block in hits:
            self.pool.touch(block)
        tables = tuple(_Table() for _ in self.groups)
        for null, table, blocks in zip(self._null_pages, tables, match.blocks, strict=True):
            for i in range(prefix_blocks):
                hit = blocks.get(i)
                table.blocks.append(hit)
                table.pages.append(null if hit is None else hit.pages)
            table.first_held = prefix_blocks - len(blocks)
        self._tables[sequence_id] = tables
        self._num_hashed[sequence_id] = prefix_blocks
        return self.grow(sequence_id, num_tokens)

    def grow(self, sequence_id: str, num_tokens: int) -> bool:
        """Make room for positions below ``num_tokens``; False, and nothing taken, when pages are short."""
        needed = self.pages_to_reach(sequence_id, num_tokens)
        if not needed:
            return True
        if needed > self.pool.available_pages:
            return False
        blocks = -(-num_tokens // self.block_size)
        for index, table in enumerate(self._tables[sequence_id]):
            for _ in range(blocks - len(table.blocks)):
                block = self.pool.allocate(index, self.groups[index].pages_per_block)
                table.blocks.append(block)
                table.pages.append(block.pages)
        return True

    def commit(self, sequence_id: str, num_computed_tokens: int, hashes: BlockHashes) -> None:
        """After a step: positions below ``num_computed_tokens`` are written.

        Blocks that are full now become findable under ``hashes``, and blocks wholly behind a window go back to the
        pool.
        """
        tables = self._tables[sequence_id]
        full = min(num_computed_tokens // self.block_size, len(hashes))
        if self._caching and full > self._num_hashed[sequence_id]:
            for table in tables:
                for i in range(self._num_hashed[sequence_id], full):
                    block = table.blocks[i]
                    if block is not None:
                        self.pool.register(block, hashes[i])
            self._num_hashed[sequence_id] = full
        for index, (group, table) in enumerate(zip(self.groups, tables, strict=True)):
            first_needed = group.first_needed_block(num_computed_tokens, self.block_size)
            for i in range(table.first_held, first_needed):
                block = table.blocks[i]
                if block is not None:
                    self.pool.release(block)
                    table.blocks[i] = None
                    table.pages[i] = self._null_pages[index]
            table.first_held = max(table.first_held, first_needed)

    def free(self, sequence_id: str) -> None:
        """Close the table. Tail blocks go back first, so that they are evicted first and prefixes last longest."""
        for table in self._tables.pop(sequence_id):
            for block in reversed(table.blocks):
                if block is not None:
                    self.pool.release(block)
        del self._num_hashed[sequence_id]

    # ---- what everyone may look at

    def block_tables(self, sequence_id: str) -> tuple[list[tuple[int, ...]], ...]:
        """Per group, the page ids of each block, by absolute block index: a live view, not to be changed."""
        return tuple(table.pages for table in self._tables[sequence_id])

    def usage(self) -> PageUsage:
        """Pages by state, now."""
        pool = self.pool
        return PageUsage(pool.num_pages, pool.free_pages, tuple(pool.cached_pages), tuple(pool.held_pages))

    def audit(self) -> list[str]:
        """Account for every page; returns what is wrong, naming the owner, or an empty list."""
        holders: dict[KVBlock, list[str]] = {}
        problems = []
        for sequence_id, tables in self._tables.items():
            for index, table in enumerate(tables):
                where = f"{sequence_id}/{self.groups[index].name}"
                for i, block in enumerate(table.blocks):
                    if block is not None:
                        holders.setdefault(block, []).append(where)
                    pages = self._null_pages[index] if block is None else block.pages
                    if table.pages[i] != pages:
                        problems.append(f"{where} block {i} shows pages {table.pages[i]} and holds {pages}")
                    if (block is None) != (i < table.first_held):
                        problems.append(f"{where} block {i} is {block}, but the first held is {table.first_held}")
        return problems + self.pool.audit(holders)
