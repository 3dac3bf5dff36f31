"""Any order of calls on a BlockManager, against a naive model of what every page holds.

The model writes, for every position that a step computes, who it is (salt and all tokens up to it) into the page and
column that the block table names, and before each step reads back all that the window sees. A page handed out twice, a
prefix hit on other tokens, a block that moved or went back too early: each shows as a wrong content.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from block_manager.block import NULL_PAGE
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager, PageUsage

BLOCK = 4
PLANS = ([None], [6], [None, 6], [5, 5, None, 5, 9], [4, 4, 4, None])
# prompts that share long prefixes, and sometimes all of them
TOKENS = st.builds(
    lambda shared, tail: [0] * shared + tail, st.integers(0, 24), st.lists(st.integers(0, 1), min_size=1, max_size=3)
)
Identity = tuple[object, ...]


@dataclass
class Sequence:
    token_ids: list[int]
    hashes: BlockHashes
    salt: str
    computed: int
    reserved: int
    seen: list[dict[int, tuple[int, ...]]] = field(default_factory=list)

    def identity(self, group: int, column: int, position: int) -> Identity:
        return (group, column, self.salt, tuple(self.token_ids[: position + 1]))


class BlockManagerStates(RuleBasedStateMachine):
    @initialize(
        windows=st.sampled_from(PLANS), num_pages=st.integers(1, 40), caching=st.sampled_from([True] * 3 + [False])
    )
    def build(self, windows: list[int | None], num_pages: int, caching: bool) -> None:
        self.groups = plan_groups(windows)
        self.blocks = BlockManager(self.groups, num_pages, BLOCK, enable_prefix_caching=caching)
        self.sequences: dict[str, Sequence] = {}
        self.contents: dict[tuple[int, int], Identity] = {}  # (page, offset) -> what was written there last
        self.names = 0

    # ---- rules

    @rule(token_ids=TOKENS, salt=st.sampled_from(["", "", "b"]), chunk=st.integers(1, 24))
    def admit(self, token_ids: list[int], salt: str, chunk: int) -> None:
        hashes = BlockHashes(BLOCK, salt)
        hashes.extend(token_ids)
        match = self.blocks.match_prefix(hashes, len(token_ids))
        assert match.num_tokens == self.longest_prefix(hashes, len(token_ids))
        reached = min(match.num_tokens + chunk, len(token_ids))
        before, available = self.blocks.usage(), self.blocks.available_pages
        forecast = self.blocks.pages_to_admit(match, len(token_ids), chunk)
        self.names += 1
        name = f"s{self.names}"
        if not self.blocks.admit(name, match, reached):
            assert self.blocks.usage() == before
            assert forecast > available
            return
        assert available - self.blocks.available_pages <= forecast
        sequence = Sequence(token_ids, hashes, salt, match.num_tokens, reached, [{} for _ in self.groups])
        self.sequences[name] = sequence
        self.check_reads(name, sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), chunk=st.integers(1, 24))
    def grow(self, data: st.DataObject, chunk: int) -> None:
        name, sequence = self.pick(data)
        wanted = min(sequence.reserved + chunk, len(sequence.token_ids))
        before, pages = self.blocks.usage(), self.blocks.pages_to_reach(name, wanted)
        available = self.blocks.available_pages
        if self.blocks.grow(name, wanted):
            sequence.reserved = wanted
            assert available - self.blocks.available_pages == pages
        else:
            assert pages > available
            assert self.blocks.usage() == before

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), sampled=st.booleans())
    def step(self, data: st.DataObject, sampled: bool) -> None:
        name, sequence = self.pick(data)
        self.check_reads(name, sequence)
        for group, table in enumerate(self.blocks.block_tables(name)):
            for position in range(sequence.computed, sequence.reserved):
                for column, page in enumerate(table[position // BLOCK]):
                    assert page != NULL_PAGE
                    self.contents[page, position % BLOCK] = sequence.identity(group, column, position)
        sequence.computed = sequence.reserved
        self.blocks.commit(name, sequence.computed, sequence.hashes)
        if sampled and sequence.computed == len(sequence.token_ids):
            sequence.token_ids.append(data.draw(st.integers(0, 1)))
            sequence.hashes.extend(sequence.token_ids)
        self.check_reads(name, sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name, _ = self.pick(data)
        self.blocks.free(name)
        del self.sequences[name]

    @rule()
    def drop_cache(self) -> None:
        if self.names % 4 == 3:
            self.blocks.pool.drop_cache()
            assert sum(self.blocks.usage().cached) == 0

    # ---- what must hold

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        assert self.blocks.audit() == []
        usage = self.blocks.usage()
        held: list[set[int]] = [set() for _ in self.groups]
        for name in self.sequences:
            for pages, table in zip(held, self.blocks.block_tables(name), strict=True):
                pages.update(page for block in table for page in block if page != NULL_PAGE)
        counts = tuple(map(len, held))
        assert usage == PageUsage(usage.total, usage.total - sum(usage.cached) - sum(counts), usage.cached, counts)

    @invariant()
    def tables_hold_what_is_needed_and_no_more(self) -> None:
        for name, sequence in self.sequences.items():
            for group, table in zip(self.groups, self.blocks.block_tables(name), strict=True):
                first = 0 if group.window is None else max(0, sequence.computed - group.window + 1) // BLOCK
                assert len(table) == -(-sequence.reserved // BLOCK)
                assert [NULL_PAGE in pages for pages in table] == [i < first for i in range(len(table))]

    # ---- parts

    def pick(self, data: st.DataObject) -> tuple[str, Sequence]:
        name = data.draw(st.sampled_from(sorted(self.sequences)))
        return name, self.sequences[name]

    def longest_prefix(self, hashes: BlockHashes, num_tokens: int) -> int:
        """By trying every length, longest first."""
        if not self.blocks._caching:
            return 0
        for length in range((num_tokens - 1) // BLOCK, 0, -1):
            needed = [
                (index, i)
                for index, group in enumerate(self.groups)
                for i in range(group.first_needed_block(length * BLOCK, BLOCK), length)
            ]
            if all(self.blocks.pool.find(index, hashes[i]) for index, i in needed):
                return length * BLOCK
        return 0

    def check_reads(self, name: str, sequence: Sequence) -> None:
        """All that position ``computed`` and later ones can see among what is computed, in every column."""
        for index, (group, table) in enumerate(zip(self.groups, self.blocks.block_tables(name), strict=True)):
            first = 0 if group.window is None else max(0, sequence.computed - group.window + 1)
            for position in range(first, sequence.computed):
                pages = table[position // BLOCK]
                assert len(pages) == group.pages_per_block
                for column, page in enumerate(pages):
                    written = self.contents[page, position % BLOCK]
                    assert written == sequence.identity(index, column, position)
            for i, pages in enumerate(table):
                assert pages in (sequence.seen[index].setdefault(i, pages), (NULL_PAGE,) * group.pages_per_block)


TestBlockManagerStates = BlockManagerStates.TestCase
TestBlockManagerStates.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
