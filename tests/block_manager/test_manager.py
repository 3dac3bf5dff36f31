"""Block tables through a sequence's life: pages at every length, windows, sharing, eviction, refusals."""

from __future__ import annotations

import pytest

from block_manager.block import NULL_PAGE
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager, PrefixMatch

NOBODY = 0  # a holder that is no sequence
GEMMA3_270M = [None if (layer + 1) % 6 == 0 else 512 for layer in range(18)]


def hashes_of(token_ids: list[int], salt: str = "", block_size: int = 16) -> BlockHashes:
    hashes = BlockHashes(block_size, salt)
    hashes.extend(token_ids)
    return hashes


def start(blocks: BlockManager, name: str, token_ids: list[int], salt: str = "") -> PrefixMatch:
    """Admit ``token_ids`` and compute them all in one step."""
    hashes = hashes_of(token_ids, salt, blocks.block_size)
    match = blocks.match_prefix(hashes, len(token_ids))
    assert blocks.admit(name, match, len(token_ids))
    blocks.commit(name, len(token_ids), hashes)
    return match


def pages(blocks: BlockManager) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Free; cached and held by group."""
    usage = blocks.usage()
    assert usage.free + usage.cached + usage.held == usage.total
    return usage.free, tuple(group.cached for group in usage.groups), tuple(group.held for group in usage.groups)


def cached_tokens(blocks: BlockManager, token_ids: list[int], salt: str = "") -> int:
    return blocks.match_prefix(hashes_of(token_ids, salt, blocks.block_size), len(token_ids)).num_tokens


# ---- pages at every length


@pytest.mark.parametrize("outputs", [1, 15, 16, 17])
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 31, 32, 33, 511, 512])
def test_g03_pages_are_tokens_over_16_rounded_up_at_every_step(prompt: int, outputs: int) -> None:
    blocks = BlockManager(plan_groups([None]), 64, 16)
    token_ids = list(range(prompt + outputs))
    start(blocks, "s", token_ids[:prompt])
    for length in range(prompt, prompt + outputs + 1):
        assert blocks.pages_to_reach("s", length) == (length % 16 == 1 and length > prompt)
        assert blocks.grow("s", length)
        assert pages(blocks) == (64 - -(-length // 16), (0,), (-(-length // 16),))
        assert len(blocks.block_tables("s")[0]) == -(-length // 16)
        blocks.commit("s", length, hashes_of(token_ids[:length]))
    blocks.free("s")
    cached = (prompt + outputs) // 16
    assert pages(blocks) == (64 - cached, (cached,), (0,))
    assert blocks.audit() == []


@pytest.mark.parametrize("window", [1, 2, 16, 17, 31, 32, 33, 40])
def test_g10_a_sliding_group_keeps_exactly_what_its_window_sees(window: int) -> None:
    blocks = BlockManager(plan_groups([window]), 64, 16, enable_prefix_caching=False)
    hashes = BlockHashes(16)
    assert blocks.admit("s", blocks.match_prefix(hashes, 1), 1)
    for length in range(1, 200):
        assert blocks.grow("s", length)
        blocks.commit("s", length, hashes)
        table = blocks.block_tables("s")[0]
        oldest_visible = max(0, length - window + 1)  # to the next position
        held = [i for i, pages in enumerate(table) if pages != (NULL_PAGE,)]
        assert held == list(range(oldest_visible // 16, -(-length // 16)))
        assert len(held) <= -(-window // 16) + 1
        assert blocks.usage().held == len(held)
    assert blocks.audit() == []


def test_g11_at_exactly_the_window_no_page_is_returned_and_one_block_later_one_is() -> None:
    blocks = BlockManager(plan_groups([32]), 64, 16, enable_prefix_caching=False)
    returned = []
    for length in (32, 33, 46, 47, 48, 62, 63):
        start(blocks, str(length), list(range(length)))
        returned.append(sum(pages == (NULL_PAGE,) for pages in blocks.block_tables(str(length))[0]))
    assert returned == [0, 0, 0, 1, 1, 1, 2]


def test_a_block_of_five_columns_shows_five_pages_and_five_nulls_behind_the_window() -> None:
    blocks = BlockManager(plan_groups(GEMMA3_270M), 400, 16)
    start(blocks, "s", list(range(544)))
    full, sliding = blocks.block_tables("s")
    assert [len(pages) for pages in full] == [1] * 34
    assert sliding[:2] == [(NULL_PAGE,) * 5] * 2
    assert len({page for pages in (*full, *sliding[2:]) for page in pages}) == 34 + 32 * 5
    assert pages(blocks)[2] == (34, 160)
    assert pages(blocks)[1] == (0, 10)


def test_blocks_never_move_in_their_table() -> None:
    blocks = BlockManager(plan_groups([None, 20]), 64, 4)
    token_ids = list(range(60))
    start(blocks, "s", token_ids[:1])
    seen: list[dict[int, tuple[int, ...]]] = [{}, {}]
    for length in range(2, 61):
        assert blocks.grow("s", length)
        for first_seen, table in zip(seen, blocks.block_tables("s"), strict=True):
            for i, pages in enumerate(table):
                assert pages in (first_seen.setdefault(i, pages), (NULL_PAGE,))
        blocks.commit("s", length, hashes_of(token_ids[:length], block_size=4))


# ---- prefixes


def test_g01_a_prompt_of_exactly_three_pages_sent_twice_recomputes_its_last_page() -> None:
    blocks = BlockManager(plan_groups([None]), 64, 16)
    assert start(blocks, "first", list(range(48))).num_tokens == 0
    assert start(blocks, "second", list(range(48))).num_tokens == 32
    first, second = blocks.block_tables("first")[0], blocks.block_tables("second")[0]
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert pages(blocks)[2] == (4,)
    blocks.free("first")
    blocks.free("second")
    assert pages(blocks) == (61, (3,), (0,))
    assert cached_tokens(blocks, list(range(48))) == 32
    assert cached_tokens(blocks, list(range(49))) == 48


def test_g04_a_reused_page_serves_no_prefix_of_its_former_tokens() -> None:
    blocks = BlockManager(plan_groups([None]), 3, 16)
    start(blocks, "old", list(range(48)))
    blocks.free("old")
    start(blocks, "new", list(range(100, 120)))  # takes two of the three pages
    assert cached_tokens(blocks, list(range(49))) == 16
    blocks.free("new")
    start(blocks, "third", list(range(200, 248)))
    assert cached_tokens(blocks, list(range(49))) == 0
    assert blocks.audit() == []


def test_g06_a_shared_prefix_shorter_than_a_page_is_no_hit() -> None:
    blocks = BlockManager(plan_groups([None]), 64, 16)
    start(blocks, "first", [7] * 12 + list(range(100, 120)))
    assert cached_tokens(blocks, [7] * 12 + list(range(300, 320))) == 0


def test_g07_another_salt_finds_nothing() -> None:
    blocks = BlockManager(plan_groups([None, 32]), 64, 16)
    start(blocks, "first", list(range(64)), salt="tenant a")
    assert cached_tokens(blocks, list(range(64)), salt="tenant a") == 48
    assert cached_tokens(blocks, list(range(64)), salt="tenant b") == 0
    assert cached_tokens(blocks, list(range(64))) == 0


def test_a_prefix_ends_at_the_first_block_that_differs() -> None:
    blocks = BlockManager(plan_groups([None]), 64, 16)
    start(blocks, "first", list(range(64)))
    assert cached_tokens(blocks, [*range(40), 999, *range(41, 64)]) == 32


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    blocks = BlockManager(plan_groups([None]), 64, 16, enable_prefix_caching=False)
    start(blocks, "first", list(range(64)))
    assert cached_tokens(blocks, list(range(64))) == 0
    blocks.free("first")
    assert pages(blocks) == (64, (0,), (0,))


def test_nothing_is_found_before_its_step_has_succeeded() -> None:
    blocks = BlockManager(plan_groups([None]), 64, 16)
    hashes = hashes_of(list(range(64)))
    assert blocks.admit("failing", blocks.match_prefix(hashes, 64), 64)
    assert cached_tokens(blocks, list(range(64))) == 0
    blocks.free("failing")
    assert pages(blocks)[1] == (0,)


def test_g12_a_hit_is_limited_to_what_the_window_still_finds() -> None:
    """128 tokens, window 32. Grown step by step, all its windowed blocks stay cached until pages run out."""
    prompt = list(range(128))
    blocks = BlockManager(plan_groups([None, 32]), 64, 16)
    start(blocks, "first", prompt)
    blocks.free("first")
    assert pages(blocks)[1] == (8, 8)
    assert cached_tokens(blocks, [*prompt, 1]) == 128

    match = start(blocks, "again", [*prompt, 1])
    assert [sorted(found) for found in match.blocks] == [list(range(8)), [6, 7]]
    assert blocks.block_tables("again")[1][:6] == [(NULL_PAGE,)] * 6
    assert blocks.audit() == []


def test_g12_a_hole_in_the_window_shortens_the_hit_for_every_group() -> None:
    prompt = list(range(128))
    hashes = hashes_of(prompt)
    for hole, hit in [(7, 112), (6, 96), (5, 128), (0, 128)]:
        blocks = BlockManager(plan_groups([None, 32]), 64, 16)
        start(blocks, "first", prompt)
        blocks.free("first")
        evict(blocks, 1, hashes[hole])
        assert cached_tokens(blocks, [*prompt, 1]) == hit, hole


def test_g12_a_hole_in_the_full_group_ends_the_hit_there() -> None:
    prompt = list(range(128))
    for hole in range(8):
        blocks = BlockManager(plan_groups([None, 32]), 64, 16)
        start(blocks, "first", prompt)
        blocks.free("first")
        evict(blocks, 0, hashes_of(prompt)[hole])
        assert cached_tokens(blocks, [*prompt, 1]) == hole * 16


def test_g12_holes_in_two_groups_leave_the_longest_prefix_that_both_have() -> None:
    prompt = list(range(128))
    hashes = hashes_of(prompt)
    blocks = BlockManager(plan_groups([None, 32]), 64, 16)
    start(blocks, "first", prompt)
    blocks.free("first")
    evict(blocks, 0, hashes[6])  # at most 96 tokens: windowed blocks 4 and 5 are needed
    evict(blocks, 1, hashes[4])  # 96 needs block 4, 80 too: 64 it is, with blocks 2 and 3
    assert cached_tokens(blocks, [*prompt, 1]) == 64


def test_g12_a_window_is_asked_again_when_another_one_shortened_the_hit() -> None:
    prompt = list(range(128))
    hashes = hashes_of(prompt)
    blocks = BlockManager(plan_groups([32, 64]), 64, 16)
    start(blocks, "first", prompt)
    blocks.free("first")
    evict(blocks, 0, hashes[5])  # window 32 alone could use all 8 blocks, having 6 and 7
    evict(blocks, 1, hashes[7])  # window 64 stops at 7, where window 32 misses block 5
    assert cached_tokens(blocks, [*prompt, 1]) == 80


def evict(blocks: BlockManager, group: int, block_hash: bytes) -> None:
    """Make the pool evict exactly this cached block: all others are held meanwhile."""
    pool = blocks.pool
    victim = pool.find(group, block_hash)
    assert victim is not None
    others = [block for block in pool.index.blocks() if block is not victim]
    spare = [pool.allocate(0, 1, NOBODY) for _ in range(pool.free_pages)]
    for block in others:
        pool.touch(block, NOBODY)
    taken = pool.allocate(0, len(victim.pages), NOBODY)
    for block in (*others, *spare, taken):
        pool.release(block, NOBODY)
    assert blocks.audit() == []


# ---- admission


def test_admission_counts_hits_that_nobody_holds_as_pages_it_takes() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 16)
    start(blocks, "first", list(range(48)))
    held = blocks.match_prefix(hashes_of(list(range(64))), 64)
    assert blocks.pages_to_admit(held, 64, 64) == 1
    blocks.free("first")
    idle = blocks.match_prefix(hashes_of(list(range(64))), 64)
    assert idle.num_tokens == 48
    assert blocks.pages_to_admit(idle, 64, 64) == 4
    assert blocks.available_pages == 4
    assert blocks.admit("second", idle, 64)
    assert blocks.available_pages == 0


def test_a_forecast_covers_what_a_window_takes_after_shared_blocks_slid_out_of_it() -> None:
    """Shared blocks cost nothing, but once the window has left them it holds fresh ones instead."""
    blocks = BlockManager(plan_groups([32]), 64, 16)
    prompt = list(range(320))
    start(blocks, "owner", prompt[:64])
    hashes = hashes_of(prompt)
    match = blocks.match_prefix(hashes, 320)
    assert match.num_tokens == 64
    assert len(match.blocks[0]) == 2
    forecast = blocks.pages_to_admit(match, 320, 1)
    before, most = blocks.usage().held, 0
    assert blocks.admit("guest", match, 65)
    for length in range(65, 321):
        assert blocks.grow("guest", length)
        most = max(most, blocks.usage().held - before)
        blocks.commit("guest", length, hashes)
    assert most == forecast == 3


def test_admission_without_enough_pages_changes_nothing() -> None:
    blocks = BlockManager(plan_groups([None, 32]), 12, 16)
    start(blocks, "holder", list(range(100, 148)))  # 3 full, 3 sliding (one of them cached already)
    start(blocks, "gone", list(range(33)))
    blocks.free("gone")
    before = (pages(blocks), list(blocks.pool._evictable))
    prompt = list(range(160))
    match = blocks.match_prefix(hashes_of(prompt), 160)
    assert match.num_tokens == 32
    assert not blocks.admit("s", match, 160)
    assert (pages(blocks), list(blocks.pool._evictable)) == before
    assert blocks.audit() == []
    with pytest.raises(KeyError):
        blocks.block_tables("s")


def test_admission_refuses_when_the_hits_themselves_use_up_what_is_available() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 16)
    start(blocks, "gone", list(range(48)))
    blocks.free("gone")
    start(blocks, "holder", [900])
    match = blocks.match_prefix(hashes_of(list(range(64))), 64)
    before = (pages(blocks), list(blocks.pool._evictable))
    assert match.num_tokens == 48
    assert not blocks.admit("s", match, 64)  # three idle hits and a fresh page, with three available
    assert (pages(blocks), list(blocks.pool._evictable)) == before
    assert blocks.admit("s", match, 48)


def test_growth_without_enough_pages_changes_nothing() -> None:
    blocks = BlockManager(plan_groups([None, 32]), 5, 16)
    start(blocks, "s", list(range(32)))
    before = (pages(blocks), [list(table) for table in blocks.block_tables("s")])
    assert not blocks.grow("s", 33)  # one page is left, two are needed
    assert (pages(blocks), [list(table) for table in blocks.block_tables("s")]) == before
    assert blocks.grow("s", 32)
    assert blocks.audit() == []


# ---- giving back


def test_the_tail_of_a_freed_sequence_is_evicted_before_its_head() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 16)
    start(blocks, "first", list(range(64)))
    blocks.free("first")
    lengths = []
    for _ in range(4):
        lengths.append(cached_tokens(blocks, [*range(64), 1]))
        blocks.pool.allocate(0, 1, NOBODY)
    assert lengths == [64, 48, 32, 16]


def test_sequences_freed_earlier_are_evicted_earlier_and_a_hit_renews() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 16)
    for name, first in (("a", 0), ("b", 100)):
        start(blocks, name, list(range(first, first + 32)))
    blocks.free("a")
    blocks.free("b")
    start(blocks, "a again", list(range(32)))  # hits page 1 of a, evicts its page 2
    blocks.free("a again")
    blocks.pool.allocate(0, 2, NOBODY)
    assert cached_tokens(blocks, list(range(100, 133))) == 0
    assert cached_tokens(blocks, list(range(33))) == 32


def test_a_shared_page_stays_until_its_last_sequence_is_freed() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 16)
    start(blocks, "first", list(range(33)))
    start(blocks, "second", list(range(33)))
    assert pages(blocks) == (4, (0,), (4,))
    blocks.free("first")
    assert pages(blocks) == (5, (0,), (3,))
    blocks.free("second")
    assert pages(blocks) == (6, (2,), (0,))


def test_a_sequence_cannot_be_admitted_twice_freed_twice_or_used_unknown() -> None:
    blocks = BlockManager(plan_groups([None]), 8, 16)
    match = start(blocks, "s", list(range(20)))
    with pytest.raises(ValueError, match="s has a table already"):
        blocks.admit("s", match, 20)
    blocks.free("s")
    before = pages(blocks)
    hashes = hashes_of(list(range(20)))
    for use in (
        lambda: blocks.free("s"),
        lambda: blocks.grow("s", 1),
        lambda: blocks.commit("s", 1, hashes),
        lambda: blocks.block_tables("s"),
    ):
        with pytest.raises(KeyError):
            use()
    assert pages(blocks) == before
    assert blocks.audit() == []
