"""The ledger: usage and snapshot say what a look at every table says, cheaply; repair balances the books again."""

from __future__ import annotations

import random
import statistics
import time

import pytest

from block_manager.block import NULL_PAGE
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.page_map import PageState
from block_manager.usage import PageForecast, PageRow


def start(blocks: BlockManager, name: str, token_ids: list[int], room: int = 0) -> BlockHashes:
    hashes = BlockHashes(blocks.block_size)
    hashes.extend(token_ids)
    match = blocks.match_prefix(hashes, len(token_ids))
    assert blocks.admit(name, match, len(token_ids) + room)
    blocks.commit(name, len(token_ids), hashes)
    return hashes


def test_usage_counts_pages_slots_shares_and_evictions_by_group() -> None:
    now = [10.0]
    blocks = BlockManager(plan_groups([None, 8, 8]), 20, 4, clock=lambda: now[0])
    start(blocks, "a", list(range(10)))  # 3 full pages; blocks 0..2 of the window, 2 pages each
    full, sliding = blocks.usage().groups
    assert (full.name, full.held, full.shared, full.held_slots, full.wasted_slots) == ("full", 3, 0, 12, 2)
    assert (sliding.name, sliding.held, sliding.held_slots, sliding.wasted_slots) == ("sliding_8", 6, 24, 4)
    assert blocks.usage().waste == pytest.approx(6 / 36)
    blocks.fork("a", "b")
    full, sliding = blocks.usage().groups
    assert (full.held, full.shared, full.wasted_slots) == (3, 3, 2)
    assert (sliding.held, sliding.shared, sliding.wasted_slots) == (6, 6, 4)
    blocks.free("b")
    assert blocks.usage().groups[0].shared == 0
    blocks.free("a")
    usage = blocks.usage()
    assert (usage.free, usage.cached, usage.held, usage.waste) == (14, 6, 0, 0.0)
    now[0] = 15.0
    assert blocks.usage().oldest_cached_seconds == 5.0
    start(blocks, "c", list(range(100, 122)))  # 18 pages of 14 free and 6 cached
    evicted = [group.evicted for group in blocks.usage().groups]
    assert sum(evicted) == 4
    assert blocks.usage().total == 20


def test_an_empty_pool_wastes_nothing_and_has_no_age() -> None:
    usage = BlockManager(plan_groups([None]), 3, 4).usage()
    assert (usage.free, usage.waste, usage.oldest_cached_seconds) == (3, 0.0, 0.0)


def test_pages_taken_ahead_are_all_waste() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4)
    start(blocks, "a", list(range(5)), room=8)
    (full,) = blocks.usage().groups
    assert (full.held, full.wasted_slots) == (4, 3 + 8)


def test_a_shared_page_is_as_full_as_its_longest_holder_made_it() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 4)
    start(blocks, "a", list(range(8)))
    blocks.fork("a", "b")
    blocks.rollback("a", 5)
    assert blocks.usage().groups[0].wasted_slots == 0
    ((_,), (second,)) = blocks.block_tables("a")[0]
    assert blocks.snapshot().row(second).fill == 4
    blocks.free("b")
    assert blocks.usage().groups[0].wasted_slots == 3
    assert blocks.snapshot().row(second).fill == 1


def test_a_row_says_all_about_its_page() -> None:
    now = [3.0]
    blocks = BlockManager(plan_groups([None, 8]), 8, 4, clock=lambda: now[0])
    hashes = start(blocks, "b", list(range(6)))
    blocks.fork("b", "a")
    (first,), (last,) = blocks.block_tables("b")[0]
    prefix = int.from_bytes(hashes[0][-4:], "big")
    snapshot = blocks.snapshot()
    assert snapshot.row(first) == PageRow(first, PageState.HELD, "full", ("a", "b"), 2, 4, prefix, None)
    assert snapshot.row(last) == PageRow(last, PageState.HELD, "full", ("a", "b"), 2, 2, 0, None)
    now[0] = 4.0
    blocks.free("a")
    blocks.free("b")
    after = blocks.snapshot()
    assert after.row(first) == PageRow(first, PageState.CACHED, "full", (), 0, 4, prefix, 4.0)
    assert after.row(last) == PageRow(last, PageState.FREE, None, (), 0, 0, 0, None)
    assert snapshot.row(first).owners == ("a", "b")  # a snapshot does not follow


@pytest.mark.parametrize("seed", range(8))
def test_every_row_equals_a_look_at_the_tables(seed: int) -> None:
    source = random.Random(seed)
    blocks = BlockManager(plan_groups([None, 6, 6]), 60, 4, max_rollback=2)
    chains: dict[str, BlockHashes] = {}
    for number in range(60):
        name = f"s{number}"
        tokens = [1] * source.choice([0, 4, 8, 12]) + [source.randrange(3) for _ in range(source.randrange(1, 9))]
        hashes = BlockHashes(4)
        hashes.extend(tokens)
        if source.random() < 0.3 and chains:
            parent = source.choice(sorted(chains))
            blocks.fork(parent, name)
            chains[name] = chains[parent].fork()
        elif blocks.admit(name, blocks.match_prefix(hashes, len(tokens)), len(tokens)):
            blocks.commit(name, len(tokens), hashes)
            chains[name] = hashes
        while len(chains) > 5 or (chains and source.random() < 0.2):
            name = source.choice(sorted(chains))
            blocks.free(name)
            del chains[name]
        snapshot = blocks.snapshot()
        owners: dict[int, dict[str, int]] = {}
        group_of: dict[int, str] = {}
        for name in chains:
            for group, table in zip(blocks.groups, blocks.block_tables(name), strict=True):
                for index, pages in enumerate(table):
                    for page in set(pages) - {NULL_PAGE}:
                        owners.setdefault(page, {})[name] = min(4, blocks.sequences[name].num_tokens - 4 * index)
                        group_of[page] = group.name
        cached = {page: block for block in blocks.pool.cached_blocks() for page in block.pages}
        for page in range(1, 61):
            row = snapshot.row(page)
            if page in owners:
                assert (row.state, row.owners) == (PageState.HELD, tuple(sorted(owners[page])))
                assert (row.ref_count, row.group) == (len(owners[page]), group_of[page])
                assert row.fill == max(owners[page].values())
            elif page in cached:
                block = cached[page]
                assert block.block_hash is not None
                assert (row.state, row.owners, row.fill, row.ref_count) == (PageState.CACHED, (), 4, 0)
                assert (row.last_used, row.group) == (block.last_used, blocks.groups[block.group].name)
                assert row.hash_prefix == int.from_bytes(block.block_hash[-4:], "big")
            else:
                assert row == PageRow(page, PageState.FREE, None, (), 0, 0, 0, None)


@pytest.mark.alone
@pytest.mark.parametrize("shared", [False, True])
def test_a_snapshot_of_a_hundred_thousand_held_pages_takes_less_than_five_milliseconds(shared: bool) -> None:
    """Or, on a slow machine, half as long again as Python takes to add up as many numbers."""
    blocks = BlockManager(plan_groups([None]), 100_000, 16)
    none = BlockHashes(16)
    for number in range(1_500):
        name = f"s{number}"
        if shared and number % 2:
            blocks.fork(f"s{number - 1}", name)
            continue
        num_tokens = 16 * (132 if shared else 66) - number % 16
        assert blocks.admit(name, blocks.match_prefix(none, num_tokens), num_tokens)
        blocks.commit(name, num_tokens, none)
    usage = blocks.usage()
    assert usage.held > 98_000
    assert usage.groups[0].shared == (usage.held if shared else 0)
    times, sums = [], []
    for _ in range(15):
        before = time.thread_time()
        snapshot = blocks.snapshot()
        between = time.thread_time()
        assert sum(number for number in range(100_000)) > 0
        times.append(between - before)
        sums.append(time.thread_time() - between)
    assert statistics.median(times) < max(0.005, 1.5 * statistics.median(sums))
    assert snapshot.row(1).owners == (("s0", "s1") if shared else ("s0",))


def test_the_forecast_says_what_one_more_token_each_takes() -> None:
    blocks = BlockManager(plan_groups([None, 8, 8]), 40, 4)
    start(blocks, "full page", list(range(8)))
    start(blocks, "half a page", list(range(50, 56)))
    start(blocks, "gone", list(range(80, 84)))
    blocks.free("gone")
    assert blocks.forecast() == PageForecast(free=25, reclaimable=3, pinned=12, next_step=3)
    assert blocks.forecast().available == 28
    blocks.fork("half a page", "other half")
    assert blocks.forecast().next_step == 3 + 3 + 3  # either of the two may be the one that copies


# ---- repair


def corrupted() -> BlockManager:
    blocks = BlockManager(plan_groups([None, 8]), 20, 4)
    start(blocks, "alice", list(range(10)))
    start(blocks, "bob", list(range(10)))
    start(blocks, "carol", list(range(50, 60)))
    assert blocks.audit() == []
    return blocks


def test_repair_of_what_is_right_changes_nothing() -> None:
    blocks = corrupted()
    before = (blocks.usage().held, blocks.usage().free)
    assert blocks.repair() == []
    assert (blocks.usage().held, blocks.usage().free) == before
    assert blocks.audit() == []


def test_repair_returns_the_pages_of_a_lost_sequence_and_nobody_elses() -> None:
    blocks = corrupted()
    lost = blocks.sequences.pop("carol")
    pages = sorted(page for table in lost.tables for block in table.held() for page in block.pages)
    assert blocks.audit() != []
    assert blocks.repair() == pages
    assert blocks.audit() == []
    hashes = BlockHashes(4)
    hashes.extend(list(range(50, 60)))
    assert blocks.match_prefix(hashes, 10).num_tokens == 0
    blocks.free("alice")
    blocks.free("bob")
    assert blocks.usage().held == 0
    assert blocks.audit() == []


def test_repair_forgets_a_lost_holder_of_shared_pages() -> None:
    blocks = corrupted()
    blocks.sequences.pop("bob")
    assert blocks.usage().groups[0].shared == 2
    orphans = blocks.repair()
    assert len(orphans) == 2  # bob's own last block, in both groups
    assert blocks.audit() == []
    assert blocks.usage().groups[0].shared == 0
    blocks.free("alice")
    assert blocks.audit() == []


def test_repair_returns_a_page_that_leaked_from_the_free_list() -> None:
    blocks = corrupted()
    page = blocks.pool._free_pages.pop()
    assert blocks.repair() == [page]
    assert blocks.audit() == []
