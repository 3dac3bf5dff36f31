"""`grow` and `commit` skip what cannot change anything: the same results as always doing everything."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager

PLANS: list[list[int | None]] = [[None], [6], [None, 6], [5, 5, None, 5, 9]]


@dataclass
class Known:
    """What a caller keeps of a sequence: tokens, hashes, positions computed and positions with room."""

    token_ids: list[int]
    hashes: BlockHashes
    computed: int
    room: int
    runner: list[list[tuple[int, ...]]] = field(default_factory=list)


class Pair:
    """Two managers and the same calls; before each, one forgets that it may skip anything."""

    def __init__(self, windows: list[int | None], num_pages: int, block_size: int, caching: bool, back: int) -> None:
        self.fast, self.slow = (
            BlockManager(
                plan_groups(windows),
                num_pages,
                block_size,
                enable_prefix_caching=caching,
                max_rollback=back,
                num_host_pages=12,
                clock=lambda: 0.0,
            )
            for _ in range(2)
        )
        self.skipped_grows = self.skipped_commits = 0

    def call(self, method: str, *arguments: object) -> object:
        for sequence in self.slow.sequences.values():
            sequence.writable = sequence.next_commit = 0
        slow = getattr(self.slow, method)(*arguments)
        if method == "grow":
            self.skipped_grows += arguments[1] <= self.fast.sequences[arguments[0]].writable
        if method == "commit":
            self.skipped_commits += arguments[1] < self.fast.sequences[arguments[0]].next_commit
        fast = getattr(self.fast, method)(*arguments)
        assert fast == slow, method
        return fast

    def admit(self, name: str, hashes: BlockHashes, num_tokens: int, chunk: int) -> int | None:
        reached = []
        for blocks in (self.slow, self.fast):
            match = blocks.match_prefix(hashes, num_tokens)
            target = min(num_tokens, match.num_tokens + chunk)
            reached.append((match.num_tokens, target, blocks.admit(name, match, target)))
        assert reached[0] == reached[1]
        return reached[0][1] if reached[0][2] else None

    def compare(self) -> None:
        fast, slow = self.fast, self.slow
        assert fast.audit() == slow.audit() == []
        assert fast.usage() == slow.usage()
        assert fast.snapshot().columns == slow.snapshot().columns
        assert fast.sequences.keys() == slow.sequences.keys()
        assert fast.swapped == slow.swapped
        for name in fast.sequences:
            assert fast.block_tables(name) == slow.block_tables(name)
            assert fast.sequence_usage(name) == slow.sequence_usage(name)
            assert fast.sequences[name].num_tokens == slow.sequences[name].num_tokens
            assert fast.sequences[name].num_hashed == slow.sequences[name].num_hashed
        assert fast.take_transfers() == slow.take_transfers()


@pytest.mark.parametrize("windows", PLANS, ids=str)
@pytest.mark.parametrize("caching", [True, False])
def test_skipping_gives_what_doing_everything_gives(windows: list[int | None], caching: bool) -> None:
    """With forks, rollbacks, swaps and evictions in between; and what a runner is shown of changes is all it needs."""
    skipped_grows = skipped_commits = 0
    for seed in range(25):
        source = random.Random(seed)
        columns = sum(group.pages_per_block for group in plan_groups(windows))
        pair = Pair(windows, source.choice([5, 9, 16]) * columns, 4, caching, source.choice([0, 0, 5]))
        known: dict[str, Known] = {}
        for number in range(120):
            step(pair, known, source, f"s{number}")
            pair.compare()
        skipped_grows += pair.skipped_grows
        skipped_commits += pair.skipped_commits
    assert skipped_grows > 300
    assert skipped_commits > 300


def step(pair: Pair, known: dict[str, Known], source: random.Random, new: str) -> None:
    """One random call, or a step of one sequence."""
    names = sorted(known)
    kind = source.choice(["admit", *["compute"] * 12, "fork", "rollback", "swap", "free", "drop_cache"])
    if kind == "admit" or not names:
        token_ids = [0] * source.choice([0, 4, 9, 16]) + [source.randrange(2) for _ in range(source.randrange(1, 6))]
        hashes = BlockHashes(4)
        hashes.extend(token_ids)
        room = pair.admit(new, hashes, len(token_ids), source.randrange(1, 20))
        if room is not None:
            known[new] = Known(token_ids, hashes, pair.fast.sequences[new].num_tokens, room)
        return
    name = source.choice(names)
    one = known[name]
    if kind == "compute":
        wanted = max(one.room, one.computed + source.choice([1, 1, 1, 3, 9]))
        while len(one.token_ids) < wanted:
            one.token_ids.append(source.randrange(2))
        if pair.call("grow", name, wanted):
            one.room = wanted
            show(pair, name, one)
            one.computed = wanted
            one.hashes.extend(one.token_ids[:wanted])
            pair.call("commit", name, wanted, one.hashes)
    elif kind == "fork":
        pair.call("fork", name, new)
        hashes = one.hashes.fork()
        hashes.truncate(one.computed)
        known[new] = Known(one.token_ids[: one.computed], hashes, one.computed, one.computed)
        one.room = one.computed
    elif kind == "rollback":
        target = max(0, one.computed - source.randrange(6))
        held = [table.first_held for table in pair.fast.sequences[name].tables]
        needed = [group.first_needed_block(target, 4) for group in pair.fast.groups]
        if all(first <= need for first, need in zip(held, needed, strict=True)):
            pair.call("rollback", name, target)
            one.computed = one.room = target
            one.token_ids = one.token_ids[:target]
            one.hashes.truncate(target)
            one.runner = [table[: -(-target // 4)] for table in one.runner]
    elif kind == "swap":
        if pair.call("swap_out", name) is None:
            return
        one.room, one.runner = one.computed, []
        if not pair.call("swap_in", name, one.computed):
            pair.call("drop_swapped", name)
            del known[name]
    elif kind == "free":
        pair.call("free", name)
        del known[name]
    else:
        pair.call("drop_cache")


def show(pair: Pair, name: str, one: Known) -> None:
    """A runner that applies what changed has all that is still held."""
    changed = pair.call("take_changed_blocks", name)
    if not one.runner:
        one.runner = [[] for _ in pair.fast.groups]
    for table, pages in zip(one.runner, changed.pages, strict=bool(changed.pages)):
        assert len(table) >= changed.first
        table[changed.first :] = pages
    for table, full, group in zip(one.runner, pair.fast.block_tables(name), pair.fast.groups, strict=True):
        assert len(table) >= len(full)
        null = (0,) * group.pages_per_block
        assert all(mine == theirs for mine, theirs in zip(table, full, strict=False) if theirs != null)


def test_block_tables_are_copies_from_a_block_on() -> None:
    blocks = BlockManager(plan_groups([None, 6]), 40, 4)
    hashes = BlockHashes(4)
    hashes.extend(list(range(18)))
    assert blocks.admit("s", blocks.match_prefix(hashes, 18), 18)
    blocks.commit("s", 18, hashes)
    full, windowed = blocks.block_tables("s")
    assert (len(full), len(windowed)) == (5, 5)
    assert windowed[:3] == [(0,), (0,), (0,)]
    assert 0 not in [page for block in full for page in block]
    for first in range(7):
        assert blocks.block_tables("s", first) == (full[first:], windowed[first:])
    full.clear()
    windowed[0] = (99,)
    assert len(blocks.block_tables("s")[0]) == 5
    assert blocks.block_tables("s")[1][0] == (0,)
    assert blocks.audit() == []


def test_changed_blocks_are_told_once_and_all_of_them_at_first() -> None:
    blocks = BlockManager(plan_groups([None]), 40, 4)
    hashes = BlockHashes(4)
    hashes.extend(list(range(6)))
    assert blocks.admit("s", blocks.match_prefix(hashes, 6), 6)
    assert blocks.take_changed_blocks("s") == (0, blocks.block_tables("s"))
    assert blocks.take_changed_blocks("s") == (0, ())
    blocks.commit("s", 6, hashes)
    assert blocks.grow("s", 8)
    assert blocks.take_changed_blocks("s") == (0, ())
    blocks.commit("s", 8, hashes)
    assert blocks.grow("s", 9)
    assert blocks.grow("s", 13)
    assert blocks.take_changed_blocks("s") == (2, blocks.block_tables("s", 2))
    blocks.commit("s", 13, hashes)
    blocks.fork("s", "child")
    assert blocks.grow("s", 14)  # its last block is a copy now
    assert blocks.take_changed_blocks("s") == (3, blocks.block_tables("s", 3))
    assert blocks.take_changed_blocks("child") == (0, blocks.block_tables("child"))


def test_a_manager_that_skips_copies_is_caught() -> None:
    """The comparison can fail: a fork after which the parent still thinks its last block its own."""
    pair = Pair([None], 10, 4, True, 0)
    hashes = BlockHashes(4)
    hashes.extend(list(range(6)))
    assert pair.admit("s", hashes, 6, 6) == 6
    pair.call("commit", "s", 6, hashes)
    pair.call("fork", "s", "child")
    pair.fast.sequences["s"].writable = 8
    pair.call("grow", "s", 7)
    with pytest.raises(AssertionError):
        pair.compare()
