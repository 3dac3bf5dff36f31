"""BlockManager: the block tables of all sequences, over one pool.

It knows sequences by id, positions by number and nothing of requests, models or tensors. A sequence's life:

    match_prefix -> admit -> (grow -> step -> commit)* -> free        with fork and rollback in between

    block table of a windowed group, block_size 16, window 32, 70 tokens computed:

      position   0        16       32       48       64     70
                 [null]   [null]   [page 7] [page 2] [page 9..]
                 returned when the window moved on   held, the last one partly filled

Tables are indexed by absolute position, so a block never moves in its table. Pages are taken in `admit` and `grow`,
before the step that fills them, and become findable by others in `commit`, after it succeeded: a failed step caches
nothing. Blocks are shared by reference; one that is shared, or findable, is copied before anybody writes into it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence

from block_manager import demand, ledger, swap
from block_manager.block import KVBlock
from block_manager.block_pool import BlockPool
from block_manager.block_table import NO_CHANGE, BlockTable, ChangedBlocks
from block_manager.groups import LayerGroup
from block_manager.hashing import BlockHashes
from block_manager.host_tier import HostBlock, HostTier
from block_manager.prefix_index import MissReason
from block_manager.prefix_match import PrefixMatch, match_prefix
from block_manager.sequence import SequencePages
from block_manager.sizing import Capacity
from block_manager.swap import SwappedSequence
from block_manager.transfers import Transfer, TransferKind, merged
from block_manager.usage import PageForecast, PageSnapshot, PageUsage, SequenceUsage


class BlockManager:
    """Block tables and pages of ``groups`` over a pool of ``num_pages`` pages of ``block_size`` tokens.

    Windowed groups keep what `rollback` by up to ``max_rollback`` tokens needs. ``num_host_pages`` pages of host memory
    take evicted prefixes and swapped sequences.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        num_pages: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        max_rollback: int = 0,
        num_host_pages: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.groups = tuple(groups)
        self.block_size = block_size
        self.pool = BlockPool(num_pages, len(self.groups), clock=clock, on_evict=self._keep_on_host)
        self.host = HostTier(num_host_pages)
        self.sequences: dict[str, SequencePages] = {}
        self.swapped: dict[str, SwappedSequence] = {}
        self._caching = enable_prefix_caching
        self._max_rollback = max_rollback
        self._clock = clock
        self._next_handle = 1
        self._transfers: list[Transfer] = []

    # ---- what a sequence would need

    def match_prefix(self, hashes: BlockHashes, num_tokens: int) -> PrefixMatch:
        """The longest prefix of whole blocks, at most ``num_tokens - 1`` tokens, that every group still has."""
        if not self._caching:
            return PrefixMatch(0, tuple({} for _ in self.groups), MissReason.DISABLED)
        return match_prefix(self.groups, self.block_size, self._find, self.pool.index, hashes, num_tokens)

    def pages_to_admit(self, match: PrefixMatch, num_tokens: int, chunk: int) -> int:
        """Available pages that a new sequence takes to reach ``num_tokens``: fresh ones, and hits nobody holds now."""
        span = chunk + self._max_rollback
        return demand.pages_to_admit(self.groups, self.block_size, match.num_tokens, match.blocks, num_tokens, span)

    def pages_to_reach(self, sequence_id: str, num_tokens: int) -> int:
        """Pages that ``sequence_id`` takes before it can compute positions below ``num_tokens``, copies included."""
        return demand.pages_to_reach(self.groups, self.block_size, self.sequences[sequence_id], num_tokens)

    def pages_to_grow(self, sequence_id: str, num_tokens: int, chunk: int) -> int:
        """Most pages that ``sequence_id`` takes on its way to ``num_tokens``, ``chunk`` tokens a step at most."""
        span = chunk + self._max_rollback
        return demand.pages_to_grow(self.groups, self.block_size, self.sequences[sequence_id], num_tokens, span)

    def pages_to_swap_in(self, sequence_id: str, num_tokens: int, chunk: int) -> int:
        """Most pages that a swapped sequence holds while it comes back and grows to ``num_tokens``."""
        span = chunk + self._max_rollback
        return demand.pages_to_swap_in(self.groups, self.block_size, self.swapped[sequence_id], num_tokens, span)

    def capacity(self, max_chunk: int) -> Capacity:
        """The arithmetic of what fits here, for steps of at most ``max_chunk`` tokens of one sequence."""
        return Capacity(self.groups, self.block_size, self.pool.num_pages, max_chunk, self._max_rollback)

    @property
    def available_pages(self) -> int:
        """Pages that can be taken now: free or cached."""
        return self.pool.available_pages

    # ---- a sequence's life

    def admit(self, sequence_id: str, match: PrefixMatch, num_tokens: int) -> bool:
        """Open a table with the matched blocks and room for positions below ``num_tokens``; False: not enough pages."""
        hits = [block for blocks in match.blocks for block in blocks.values()]
        taken = sum(len(block.pages) for block in hits if isinstance(block, HostBlock) or not block.holders)
        prefix_blocks = match.num_tokens // self.block_size
        fresh = -(-num_tokens // self.block_size) - prefix_blocks
        if taken + fresh * sum(group.pages_per_block for group in self.groups) > self.pool.available_pages:
            return False
        sequence = self._open(sequence_id, match.num_tokens, prefix_blocks)
        # all hits are secured before the first page is taken, which may evict
        for block in hits:
            if isinstance(block, HostBlock):
                self.host.detach(block)
            else:
                self.pool.touch(block, sequence.handle)
        for table, blocks in zip(sequence.tables, match.blocks, strict=True):
            table.append_null(prefix_blocks - len(blocks))
            for index in sorted(blocks):
                block = blocks[index]
                table.append(self._fetch(block, sequence) if isinstance(block, HostBlock) else block)
        sequence.count(sum(len(block.pages) for block in hits), sequence.opened)
        return self.grow(sequence_id, num_tokens)

    def grow(self, sequence_id: str, num_tokens: int) -> bool:
        """Make room for positions below ``num_tokens``; False, and nothing taken, when pages are short.

        A last block that others can see is replaced by a copy first (`take_transfers`).
        """
        sequence = self.sequences[sequence_id]
        if num_tokens <= sequence.writable:
            return True
        needed = demand.pages_to_reach(self.groups, self.block_size, sequence, num_tokens)
        if needed > self.pool.available_pages:
            return False
        if num_tokens > sequence.num_tokens:
            self._own_last_blocks(sequence)
            sequence.writable = max(-(-num_tokens // self.block_size), len(sequence.tables[0])) * self.block_size
        if needed:
            blocks = -(-num_tokens // self.block_size)
            taken = 0
            sequence.changed_from = min(sequence.changed_from, len(sequence.tables[0]))
            for index, (group, table) in enumerate(zip(self.groups, sequence.tables, strict=True)):
                for _ in range(blocks - len(table)):
                    table.append(self.pool.allocate(index, group.pages_per_block, sequence.handle))
                    taken += group.pages_per_block
            sequence.count(taken, self._clock())
        return True

    def commit(self, sequence_id: str, num_computed_tokens: int, hashes: BlockHashes) -> None:
        """After a step: positions below ``num_computed_tokens`` are written.

        Blocks that are full now become findable under ``hashes``, and blocks wholly behind a window go back to the
        pool.
        """
        sequence = self.sequences[sequence_id]
        sequence.num_tokens = num_computed_tokens
        if num_computed_tokens < sequence.next_commit:
            return
        full = min(num_computed_tokens // self.block_size, len(hashes))
        if self._caching and full > sequence.num_hashed:
            for table in sequence.tables:
                for i in range(max(sequence.num_hashed, table.first_held), full):
                    block = table.blocks[i]
                    assert block is not None
                    self.pool.register(block, hashes[i])
            sequence.num_hashed = full
        kept = max(0, num_computed_tokens - self._max_rollback)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            first_needed = group.first_needed_block(kept, self.block_size)
            if first_needed > table.first_held:
                self._release(sequence, table.drop_before(first_needed))
        sequence.next_commit = self._next_commit(sequence)

    def fork(self, sequence_id: str, child_id: str) -> None:
        """Open ``child_id`` with the same written positions as ``sequence_id``, every block shared; takes no page."""
        parent = self.sequences[sequence_id]
        parent.writable = 0
        child = self._open(child_id, parent.num_tokens, parent.num_hashed)
        blocks = -(-parent.num_tokens // self.block_size)
        for table, copy in zip(parent.tables, child.tables, strict=True):
            copy.append_null(table.first_held)
            for block in table.blocks[table.first_held : blocks]:
                assert block is not None
                self.pool.touch(block, child.handle)
                copy.append(block)
            child.count(sum(len(block.pages) for block in copy.held()), child.opened)

    def rollback(self, sequence_id: str, num_tokens: int) -> None:
        """Take back all positions from ``num_tokens`` on; whole blocks behind it go back to the pool.

        ValueError when a window has moved on so far that it could not be restored: by more than ``max_rollback``, or
        into the prefix that was found at admission, of which a window takes only its end.
        """
        sequence = self.sequences[sequence_id]
        if not 0 <= num_tokens <= sequence.num_tokens:
            raise ValueError(f"{sequence_id} has {sequence.num_tokens} tokens and cannot roll back to {num_tokens}")
        for group, table in zip(self.groups, sequence.tables, strict=True):
            if group.first_needed_block(num_tokens, self.block_size) < table.first_held:
                raise ValueError(f"{sequence_id} cannot roll back to {num_tokens}: {group.name} has moved on")
        for table in sequence.tables:
            self._release(sequence, table.drop_from(-(-num_tokens // self.block_size)))
        sequence.num_tokens = num_tokens
        sequence.writable = sequence.next_commit = 0
        sequence.num_hashed = min(sequence.num_hashed, num_tokens // self.block_size)

    def free(self, sequence_id: str) -> SequenceUsage:
        """Close the table. Tail blocks go back first, so that they are evicted first and prefixes last longest."""
        sequence = self.sequences.pop(sequence_id)
        for table in sequence.tables:
            self._release(sequence, table.drop_from(0))
        return sequence.usage(self._clock())

    def swap_out(self, sequence_id: str) -> SequenceUsage | None:
        """Move a sequence to host pages and close its table; None, and nothing moved, when the host is full."""
        sequence = self.sequences[sequence_id]
        swapped = swap.swap_out(self.host, sequence, self._transfers)
        if swapped is None:
            return None
        usage = self.free(sequence_id)
        self.swapped[sequence_id] = swapped
        return usage

    def swap_in(self, sequence_id: str, num_tokens: int) -> bool:
        """Bring a swapped sequence back, with room for positions below ``num_tokens``; False: not enough pages."""
        swapped = self.swapped[sequence_id]
        blocks = max(0, -(-num_tokens // self.block_size) - len(swapped.tables[0]))
        fresh = blocks * sum(group.pages_per_block for group in self.groups)
        if swapped.device_pages + fresh > self.pool.available_pages:
            return False
        del self.swapped[sequence_id]
        # none of its blocks can be found now: the next commit offers them all to the index again
        sequence = self._open(sequence_id, swapped.num_tokens, 0)
        swap.swap_in(self.host, self.pool, swapped, sequence, self._transfers, sequence.opened)
        return self.grow(sequence_id, num_tokens)

    def drop_swapped(self, sequence_id: str) -> None:
        """Give a swapped sequence's host pages back: it will not come back, or be computed anew."""
        self.host.give_back(tuple(self.swapped.pop(sequence_id).pages))

    def drop_cache(self) -> None:
        """Forget all that nobody holds, on device and host, and every hash: contents are not to be trusted."""
        self.pool.drop_cache()
        self.host.drop_prefixes()

    # ---- what others carry out, or look at

    def take_transfers(self) -> tuple[Transfer, ...]:
        """Page contents to move, in this order, before the next step computes."""
        transfers, self._transfers = merged(self._transfers), []
        return transfers

    def block_tables(self, sequence_id: str, first_block: int = 0) -> tuple[list[tuple[int, ...]], ...]:
        """Per group, the page ids of each block from ``first_block`` on, by block index: a copy."""
        return tuple([table.pages[first_block:] for table in self.sequences[sequence_id].tables])

    def take_changed_blocks(self, sequence_id: str) -> ChangedBlocks:
        """The blocks that are new, or were replaced, since the last call; all of them at first."""
        sequence = self.sequences[sequence_id]
        first = sequence.changed_from
        if first == sys.maxsize:
            return NO_CHANGE
        sequence.changed_from = sys.maxsize
        return ChangedBlocks(first, tuple([table.pages[first:] for table in sequence.tables]))

    def sequence_usage(self, sequence_id: str) -> SequenceUsage:
        """Pages that a sequence holds and has held."""
        return self.sequences[sequence_id].usage(self._clock())

    def usage(self) -> PageUsage:
        """Pages by state and group, now."""
        return ledger.usage(self.pool, self.groups, self.block_size, self.sequences.values())

    def snapshot(self) -> PageSnapshot:
        """Every page, now: state, owners, fill; the source of a page map."""
        return ledger.snapshot(self.pool, self.groups, self.block_size, self.sequences.values())

    def cached_seconds(self, page: int) -> float:
        """Since the last holder of a cached page let go of it."""
        return self._clock() - self.pool.pages.last_used(page)

    def audit(self) -> list[str]:
        """Account for every page; returns what is wrong, naming the owner, or an empty list."""
        swapped = {name: sequence.pages for name, sequence in self.swapped.items()}
        return ledger.audit(self.pool, self.groups, self.sequences.values()) + self.host.audit(swapped)

    def repair(self) -> list[int]:
        """Give pages that are in no place back to the pool, and forget holders that are gone; returns the pages."""
        return ledger.repair(self.pool, self.sequences.values())

    def forecast(self) -> PageForecast:
        """Pages now, and what the next step takes if every open sequence grows by one token."""
        next_step = sum(self.pages_to_reach(name, one.num_tokens + 1) for name, one in self.sequences.items())
        return PageForecast(self.pool.free_pages, sum(self.pool.cached_pages), sum(self.pool.held_pages), next_step)

    # ---- parts

    def _open(self, sequence_id: str, num_tokens: int, num_hashed: int) -> SequencePages:
        if sequence_id in self.sequences or sequence_id in self.swapped:
            raise ValueError(f"sequence {sequence_id} has a table already")
        tables = tuple(BlockTable(group.pages_per_block) for group in self.groups)
        sequence = SequencePages(sequence_id, self._next_handle, tables, num_tokens, num_hashed, self._clock())
        self._next_handle += 1
        self.sequences[sequence_id] = sequence
        return sequence

    def _find(self, group: int, block_hash: bytes) -> KVBlock | HostBlock | None:
        return self.pool.find(group, block_hash) or self.host.find(group, block_hash)

    def _keep_on_host(self, block: KVBlock) -> None:
        """A cached block is about to lose its pages."""
        if self.host.num_pages and block.block_hash is not None:
            pages = self.host.store(block.group, block.block_hash, len(block.pages))
            if pages is not None:
                self._transfers.append(Transfer(TransferKind.OUT, block.pages, pages))

    def _fetch(self, stored: HostBlock, sequence: SequencePages) -> KVBlock:
        """A device block with the contents of a detached host block."""
        block = self.pool.allocate(stored.group, len(stored.pages), sequence.handle)
        self._transfers.append(Transfer(TransferKind.IN, stored.pages, block.pages))
        self.pool.register(block, stored.block_hash)
        self.host.attach(stored)
        return block

    def _release(self, sequence: SequencePages, blocks: Iterable[KVBlock]) -> None:
        pages = 0
        for block in blocks:
            self.pool.release(block, sequence.handle)
            pages += len(block.pages)
        if pages:
            sequence.count(-pages, self._clock())

    def _next_commit(self, sequence: SequencePages) -> int:
        """The first length at which a block of ``sequence`` is full, or falls behind a window."""
        lengths = [(sequence.num_hashed + 1) * self.block_size] if self._caching else []
        for group, table in zip(self.groups, sequence.tables, strict=True):
            if group.window is not None:
                lengths.append((table.first_held + 1) * self.block_size + group.window - 1 + self._max_rollback)
        return min(lengths, default=sys.maxsize)

    def _own_last_blocks(self, sequence: SequencePages) -> None:
        """Make the block that the next position lies in the sequence's own, and not findable."""
        index, offset = divmod(sequence.num_tokens, self.block_size)
        if not offset:
            return
        for number, table in enumerate(sequence.tables):
            if index >= len(table):
                continue
            block = table.blocks[index]
            assert block is not None
            if len(block.holders) > 1:
                copy = self.pool.allocate(number, len(block.pages), sequence.handle)
                self._transfers.append(Transfer(TransferKind.COPY, block.pages, copy.pages))
                table.replace(index, copy)
                sequence.changed_from = min(sequence.changed_from, index)
                self.pool.release(block, sequence.handle)
            elif block.block_hash is not None:
                self.pool.unregister(block)
