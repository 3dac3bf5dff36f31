"""Any order of calls on a BlockManager, against a naive model of what every page holds.

The model writes, for every position that a step computes, who it is (salt and all tokens up to it) into the page and
column that the block table names, carries out transfers between pages in their order before it writes, and before each
step reads back all that any window sees. A page handed out twice, a prefix hit on other tokens, a block that moved or
went back too early, a copy that came too late: each shows as a wrong content.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from block_manager.block import NULL_PAGE, KVBlock
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.page_map import PageState
from block_manager.transfers import TransferKind

if TYPE_CHECKING:
    from tests.block_manager.conftest import Sequence

PLANS = ([None], [6], [None, 6], [5, 5, None, 5, 9], [4, 4, 4, None])
# prompts that share long prefixes, and sometimes all of them
TOKENS = st.builds(
    lambda shared, tail: [0] * shared + tail,
    st.sampled_from([0, 1, 3, 4, 6, 8, 12, 15, 16, 20, 32, 35]),
    st.lists(st.integers(0, 1), min_size=1, max_size=3),
)
CHUNKS = st.sampled_from([1, 2, 3, 5, 8, 40])
TAILS = st.lists(st.integers(0, 1), min_size=1, max_size=4)


class BlockManagerStates(RuleBasedStateMachine):
    block_size = 4
    steps = 0
    transfers: ClassVar[Counter[TransferKind]] = Counter()
    model: ClassVar[ModuleType]

    @initialize(
        windows=st.sampled_from(PLANS),
        blocks=st.sampled_from([1, 2, 3, 5, 8, 13, 21]),
        odd_pages=st.integers(0, 3),
        host_pages=st.sampled_from([0, 7, 20, 60]),
        max_rollback=st.sampled_from([0, 1, 5]),
        caching=st.sampled_from([True] * 3 + [False]),
    )
    def build(
        self, windows: list[int | None], blocks: int, odd_pages: int, host_pages: int, max_rollback: int, caching: bool
    ) -> None:
        self.groups = plan_groups(windows)
        num_pages = blocks * sum(group.pages_per_block for group in self.groups) + odd_pages
        self.max_rollback = max_rollback
        self.caching = caching
        self.blocks = BlockManager(
            self.groups,
            num_pages,
            self.block_size,
            enable_prefix_caching=caching,
            max_rollback=max_rollback,
            num_host_pages=host_pages,
        )
        self.sequences: dict[str, Sequence] = {}
        self.swapped: dict[str, Sequence] = {}
        self.contents = self.model.Contents(self.block_size, self.transfers)
        self.names = 0

    # ---- rules

    @rule(token_ids=TOKENS, salt=st.sampled_from(["", "", "b"]), chunk=CHUNKS, tail=TAILS)
    def admit(self, token_ids: list[int], salt: str, chunk: int, tail: list[int]) -> None:
        hashes = BlockHashes(self.block_size, salt)
        hashes.extend(token_ids)
        match = self.blocks.match_prefix(hashes, len(token_ids))
        assert match.num_tokens == self.longest_prefix(hashes, len(token_ids))
        reached = min(match.num_tokens + chunk, len(token_ids))
        before, available = self.counts(), self.blocks.available_pages
        forecast = self.blocks.pages_to_admit(match, len(token_ids), chunk)
        name = self.new_name()
        if not self.blocks.admit(name, match, reached):
            assert self.counts() == before
            assert forecast > available
            return
        assert available - self.blocks.available_pages <= forecast
        first_held = [group.first_needed_block(match.num_tokens, self.block_size) for group in self.groups]
        self.sequences[name] = self.model.Sequence(
            token_ids,
            hashes,
            salt,
            match.num_tokens,
            match.num_tokens,
            reached,
            self.blocks_for(reached),
            first_held,
            [{} for _ in self.groups],
        )
        if chunk > 2:
            self.compute(name, tail)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), chunk=CHUNKS)
    def grow(self, data: st.DataObject, chunk: int) -> None:
        name, sequence = self.pick(data, self.sequences)
        self.grow_to(name, sequence.writable + chunk)

    def grow_to(self, name: str, num_tokens: int) -> bool:
        sequence = self.sequences[name]
        wanted = min(num_tokens, len(sequence.token_ids))
        before, pages = self.counts(), self.blocks.pages_to_reach(name, wanted)
        available = self.blocks.available_pages
        if not self.blocks.grow(name, wanted):
            assert pages > available
            assert self.counts() == before
            return False
        sequence.writable = wanted
        sequence.num_blocks = max(sequence.num_blocks, self.blocks_for(wanted))
        assert available - self.blocks.available_pages == pages
        self.forget_replaced(name, sequence)
        return True

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tail=TAILS)
    def step(self, data: st.DataObject, tail: list[int]) -> None:
        name, _ = self.pick(data, self.sequences)
        self.compute(name, tail)

    @precondition(lambda self: self.sequences)
    @rule(chunk=CHUNKS, tail=TAILS)
    def step_all(self, chunk: int, tail: list[int]) -> None:
        """Grow and compute every sequence, as far as there are pages."""
        for name in list(self.sequences):
            if self.grow_to(name, self.sequences[name].writable + chunk):
                self.compute(name, tail)

    def compute(self, name: str, tail: list[int]) -> None:
        """What is writable becomes computed; a sequence that has caught up goes on with ``tail``."""
        sequence = self.sequences[name]
        self.contents.carry_out(self.blocks.take_transfers())
        for other, it in self.sequences.items():
            self.check_reads(other, it)
        for group, table in enumerate(self.blocks.block_tables(name)):
            for position in range(sequence.computed, sequence.writable):
                for column, page in enumerate(table[position // self.block_size]):
                    assert page != NULL_PAGE
                    self.contents.device[page, position % self.block_size] = sequence.identity(group, column, position)
        sequence.computed = max(sequence.computed, sequence.writable)
        self.blocks.commit(name, sequence.computed, sequence.hashes)
        kept = max(0, sequence.computed - self.max_rollback)
        for index, group in enumerate(self.groups):
            needed = group.first_needed_block(kept, self.block_size)
            sequence.first_held[index] = max(sequence.first_held[index], needed)
        if sequence.computed == len(sequence.token_ids):
            sequence.continue_with(sequence.computed, tail)
        for other, it in self.sequences.items():
            self.check_reads(other, it)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tail=TAILS)
    def fork(self, data: st.DataObject, tail: list[int]) -> None:
        name, parent = self.pick(data, self.sequences)
        before = self.counts()
        child_name = self.new_name()
        self.blocks.fork(name, child_name)
        assert self.counts() == before
        parent.writable = parent.computed
        num_blocks = self.blocks_for(parent.computed)
        child = replace(
            parent,
            hashes=parent.hashes.fork(),
            num_blocks=num_blocks,
            first_held=list(parent.first_held),
            seen=[{i: pages for i, pages in seen.items() if i < num_blocks} for seen in parent.seen],
        )
        child.continue_with(child.computed, tail)
        self.sequences[child_name] = child

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), back=st.integers(0, 12), tail=TAILS)
    def rollback(self, data: st.DataObject, back: int, tail: list[int]) -> None:
        name, sequence = self.pick(data, self.sequences)
        target = max(0, sequence.computed - back)
        possible = all(
            group.first_needed_block(target, self.block_size) >= first
            for group, first in zip(self.groups, sequence.first_held, strict=True)
        )
        if not possible:
            assert back > self.max_rollback or target < sequence.matched
            before = self.counts()
            with pytest.raises(ValueError, match="has moved on"):
                self.blocks.rollback(name, target)
            assert self.counts() == before
            return
        former, hashes = list(sequence.token_ids), sequence.hashes.fork()
        self.blocks.rollback(name, target)
        sequence.computed = sequence.writable = target
        sequence.num_blocks = self.blocks_for(target)
        sequence.continue_with(target, tail)
        for seen in sequence.seen:
            for index in [index for index in seen if index >= sequence.num_blocks]:
                del seen[index]
        if len(tail) > 1 and self.grow_to(name, target + 40):
            self.compute(name, tail)
            self.check_match(replace(sequence, token_ids=former, hashes=hashes))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        name, sequence = self.pick(data, self.sequences)
        pages = sum(page != NULL_PAGE for table in self.blocks.block_tables(name) for block in table for page in block)
        before, room = self.counts(), self.blocks.host.num_pages - self.blocks.host.swapped_pages
        if self.blocks.swap_out(name):
            self.swapped[name] = self.sequences.pop(name)
            assert pages <= room
            sequence.writable = sequence.computed
            sequence.seen = [{} for _ in self.groups]
        else:
            assert pages > room
            assert self.counts() == before

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), chunk=st.integers(0, 8))
    def swap_in(self, data: st.DataObject, chunk: int) -> None:
        name, sequence = self.pick(data, self.swapped)
        wanted = min(sequence.computed + chunk, len(sequence.token_ids))
        num_blocks = max(sequence.num_blocks, self.blocks_for(wanted))
        pages = sum(
            (num_blocks - first) * group.pages_per_block
            for group, first in zip(self.groups, sequence.first_held, strict=True)
        )
        before, available = self.counts(), self.blocks.available_pages
        if self.blocks.swap_in(name, wanted):
            assert available - self.blocks.available_pages == pages
            self.sequences[name] = self.swapped.pop(name)
            sequence.writable = max(sequence.computed, wanted)
            sequence.num_blocks = num_blocks
        else:
            assert pages > available
            assert self.counts() == before

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def drop_swapped(self, data: st.DataObject) -> None:
        name, _ = self.pick(data, self.swapped)
        self.blocks.drop_swapped(name)
        del self.swapped[name]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name, _ = self.pick(data, self.sequences)
        self.blocks.free(name)
        del self.sequences[name]

    @rule(really=st.integers(0, 9))
    def drop_cache(self, really: int) -> None:
        if really == 9:
            self.blocks.pool.drop_cache()
            assert self.blocks.usage().cached == 0

    # ---- what must hold

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        type(self).steps += 1
        assert self.blocks.audit() == []
        owners: dict[int, list[str]] = {}
        fills: dict[int, int] = {}
        held, shared = [0] * len(self.groups), [0] * len(self.groups)
        for name, sequence in self.sequences.items():
            for group, table in enumerate(self.blocks.block_tables(name)):
                for index, pages in enumerate(table):
                    fill = min(self.block_size, max(0, sequence.computed - index * self.block_size))
                    for page in pages:
                        if page != NULL_PAGE:
                            owners.setdefault(page, []).append(name)
                            held[group] += len(owners[page]) == 1
                            shared[group] += len(owners[page]) == 2
                            fills[page] = max(fills.get(page, 0), fill)
        usage = self.blocks.usage()
        assert [(group.held, group.shared) for group in usage.groups] == list(zip(held, shared, strict=True))
        assert usage.free + usage.cached + usage.held == usage.total
        assert sum(group.wasted_slots for group in usage.groups) == sum(
            self.block_size - fill for fill in fills.values()
        )
        snapshot = self.blocks.snapshot()
        for page in range(1, usage.total + 1):
            row = snapshot.row(page)
            assert row.owners == tuple(sorted(owners.get(page, ())))
            assert row.ref_count == len(row.owners)
            assert (row.state is PageState.HELD) == (page in owners)
            if page in fills:
                assert row.fill == fills[page]

    @invariant()
    def tables_hold_what_is_needed_and_no_more(self) -> None:
        for name, sequence in self.sequences.items():
            for first, table in zip(sequence.first_held, self.blocks.block_tables(name), strict=True):
                assert len(table) == sequence.num_blocks
                assert [NULL_PAGE in pages for pages in table] == [i < first for i in range(len(table))]

    # ---- parts

    def new_name(self) -> str:
        self.names += 1
        return f"s{self.names}"

    def pick(self, data: st.DataObject, those: dict[str, Sequence]) -> tuple[str, Sequence]:
        name = data.draw(st.sampled_from(sorted(those)))
        return name, those[name]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def counts(self) -> tuple[object, ...]:
        """All that a refused call must leave as it was."""
        host, transfers = self.blocks.host, list(self.blocks._transfers)
        cached = [block.pages for block in self.blocks.pool.cached_blocks()]
        return self.blocks.pool.free_pages, cached, host.free_pages, host.swapped_pages, host.prefix_pages, transfers

    def longest_prefix(self, hashes: BlockHashes, num_tokens: int) -> int:
        """By trying every length, longest first."""
        if not self.caching:
            return 0
        stored = self.blocks.host._prefixes
        for length in range((num_tokens - 1) // self.block_size, 0, -1):
            needed = [
                (index, i)
                for index, group in enumerate(self.groups)
                for i in range(group.first_needed_block(length * self.block_size, self.block_size), length)
            ]
            if all(self.blocks.pool.find(g, hashes[i]) or (g, hashes[i]) in stored for g, i in needed):
                return length * self.block_size
        return 0

    def forget_replaced(self, name: str, sequence: Sequence) -> None:
        """The block that the next position lies in may have been replaced by a copy."""
        index, offset = divmod(sequence.computed, self.block_size)
        for seen, table in zip(sequence.seen, self.blocks.block_tables(name), strict=True):
            if offset and index < len(table):
                seen[index] = table[index]

    def check_match(self, sequence: Sequence) -> None:
        """What would be found for these tokens holds these tokens."""
        match = self.blocks.match_prefix(sequence.hashes, len(sequence.token_ids) + 1)
        for group, blocks in enumerate(match.blocks):
            for index, block in blocks.items():
                contents = self.contents.device if isinstance(block, KVBlock) else self.contents.host
                for column, page in enumerate(block.pages):
                    for offset in range(self.block_size):
                        wanted = sequence.identity(group, column, index * self.block_size + offset)
                        assert contents[page, offset] == wanted

    def check_reads(self, name: str, sequence: Sequence) -> None:
        """All that position ``computed`` and later ones can see among what is computed, in every column."""
        for index, (group, table) in enumerate(zip(self.groups, self.blocks.block_tables(name), strict=True)):
            first = 0 if group.window is None else max(0, sequence.computed - group.window + 1)
            for position in range(first, sequence.computed):
                pages = table[position // self.block_size]
                assert len(pages) == group.pages_per_block
                for column, page in enumerate(pages):
                    written = self.contents.device[page, position % self.block_size]
                    assert written == sequence.identity(index, column, position)
            for i, pages in enumerate(table):
                assert pages in (sequence.seen[index].setdefault(i, pages), (NULL_PAGE,) * group.pages_per_block)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_no_order_of_calls_mixes_up_contents_or_loses_a_page(naive_model: ModuleType, block_size: int) -> None:
    counts = {"steps": 0, "transfers": Counter()}
    machine = type("States", (BlockManagerStates,), {"block_size": block_size, "model": naive_model, **counts})
    run(
        machine,
        settings=settings(
            max_examples=160,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
    assert machine.steps >= 5_000  # and four block sizes: 20,000 audited steps
    for kind in TransferKind:
        assert machine.transfers[kind] > 5 or (kind is TransferKind.COPY and block_size == 1)
