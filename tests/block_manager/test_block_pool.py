"""The pool: every page is free, cached or held, and the oldest cached block goes first when pages run out."""

from __future__ import annotations

import pytest

from block_manager.block import NULL_PAGE, KVBlock
from block_manager.block_pool import BlockPool, OutOfPages

ALICE, BOB = 1, 2


def counts(pool: BlockPool) -> tuple[int, list[int], list[int]]:
    assert pool.free_pages + sum(pool.cached_pages) + sum(pool.held_pages) == pool.num_pages
    return pool.free_pages, pool.cached_pages, pool.held_pages


def cached(pool: BlockPool, name: bytes, *, group: int = 0, pages: int = 1) -> KVBlock:
    block = pool.allocate(group, pages, ALICE)
    pool.register(block, name)
    pool.release(block, ALICE)
    return block


def test_every_page_but_the_null_page_is_handed_out_exactly_once() -> None:
    pool = BlockPool(7, 1)
    pages = [page for _ in range(7) for page in pool.allocate(0, 1, ALICE).pages]
    assert sorted(pages) == [1, 2, 3, 4, 5, 6, 7]
    assert NULL_PAGE not in pages
    with pytest.raises(OutOfPages):
        pool.allocate(0, 1, ALICE)


def test_a_block_of_several_columns_takes_that_many_pages() -> None:
    pool = BlockPool(7, 2)
    wide, narrow = pool.allocate(1, 5, ALICE), pool.allocate(0, 1, ALICE)
    assert len({*wide.pages, *narrow.pages}) == 6
    assert counts(pool) == (1, [0, 0], [1, 5])


def test_too_large_a_block_takes_nothing() -> None:
    pool = BlockPool(7, 1)
    kept = cached(pool, b"kept", pages=3)
    with pytest.raises(OutOfPages, match="8 pages wanted, 7 available"):
        pool.allocate(0, 8, ALICE)
    assert counts(pool) == (4, [3], [0])
    assert pool.find(0, b"kept") is kept


def test_a_released_block_without_hash_is_free_and_with_hash_is_cached() -> None:
    pool = BlockPool(4, 1)
    plain, hashed = pool.allocate(0, 1, ALICE), pool.allocate(0, 2, ALICE)
    pool.register(hashed, b"h")
    pool.release(plain, ALICE)
    assert counts(pool) == (2, [0], [2])
    pool.release(hashed, ALICE)
    assert counts(pool) == (2, [2], [0])
    assert pool.available_pages == 4
    assert pool.find(0, b"h") is hashed


def test_a_block_stays_held_until_its_last_holder_leaves() -> None:
    pool = BlockPool(2, 1)
    block = pool.allocate(0, 1, ALICE)
    pool.touch(block, BOB)
    pool.release(block, ALICE)
    assert counts(pool) == (1, [0], [1])
    pool.release(block, BOB)
    assert counts(pool) == (2, [0], [0])


def test_a_hit_takes_a_cached_block_out_of_eviction() -> None:
    pool = BlockPool(3, 1)
    old, young = cached(pool, b"old"), cached(pool, b"young")
    pool.touch(old, ALICE)
    assert counts(pool) == (1, [1], [1])
    pool.allocate(0, 2, ALICE)
    assert pool.find(0, b"old") is old
    assert pool.find(0, b"young") is None
    assert young.block_hash is None


def test_free_pages_are_used_before_anything_is_evicted() -> None:
    pool = BlockPool(3, 1)
    cached(pool, b"a")
    pool.allocate(0, 2, ALICE)
    assert pool.evicted_pages == [0]
    assert pool.find(0, b"a") is not None


def test_g04_eviction_takes_the_oldest_first_and_forgets_its_hash() -> None:
    pool = BlockPool(3, 1)
    for name in (b"a", b"b", b"c"):
        cached(pool, name)
    reused = pool.allocate(0, 1, ALICE)
    assert reused.block_hash is None
    assert [pool.find(0, name) is not None for name in (b"a", b"b", b"c")] == [False, True, True]
    assert pool.evicted_pages == [1]
    assert counts(pool) == (0, [2], [1])


def test_one_group_evicts_another_groups_blocks() -> None:
    pool = BlockPool(6, 2)
    cached(pool, b"x", group=1, pages=4)
    cached(pool, b"x", group=0, pages=2)
    pool.allocate(0, 1, ALICE)
    assert counts(pool) == (3, [2, 0], [1, 0])
    assert pool.find(1, b"x") is None
    assert pool.find(0, b"x") is not None


def test_groups_keep_separate_maps() -> None:
    pool = BlockPool(4, 2)
    full, sliding = cached(pool, b"x", group=0), cached(pool, b"x", group=1)
    assert pool.find(0, b"x") is full
    assert pool.find(1, b"x") is sliding


def test_a_second_block_with_the_same_tokens_stays_unregistered() -> None:
    pool = BlockPool(4, 1)
    first, second = pool.allocate(0, 1, ALICE), pool.allocate(0, 1, ALICE)
    pool.register(first, b"same")
    pool.register(second, b"same")
    assert pool.find(0, b"same") is first
    pool.release(second, ALICE)
    assert counts(pool) == (3, [0], [1])


def test_a_block_keeps_its_first_hash() -> None:
    pool = BlockPool(4, 1)
    block = pool.allocate(0, 1, ALICE)
    pool.register(block, b"one")
    pool.register(block, b"two")
    assert block.block_hash == b"one"
    assert pool.find(0, b"two") is None


def test_only_a_holder_can_release_and_only_once() -> None:
    pool = BlockPool(2, 1)
    block = pool.allocate(0, 1, ALICE)
    with pytest.raises(ValueError, match="released by 2, which does not hold it"):
        pool.release(block, BOB)
    pool.release(block, ALICE)
    with pytest.raises(ValueError, match="released by 1, which does not hold it"):
        pool.release(block, ALICE)
    assert counts(pool) == (2, [0], [0])


def test_a_holder_holds_a_block_once() -> None:
    pool = BlockPool(2, 1)
    block = pool.allocate(0, 1, ALICE)
    with pytest.raises(ValueError, match="is held by 1 already"):
        pool.touch(block, ALICE)
    assert block.ref_count == 1


def test_dropping_the_cache_frees_cached_pages_and_unregisters_held_ones() -> None:
    pool = BlockPool(4, 1)
    held = pool.allocate(0, 1, ALICE)
    pool.register(held, b"held")
    cached(pool, b"cached", pages=2)
    pool.drop_cache()
    assert counts(pool) == (3, [0], [1])
    assert pool.find(0, b"held") is None
    assert pool.find(0, b"cached") is None
    pool.release(held, ALICE)
    assert counts(pool) == (4, [0], [0])


def test_a_pool_needs_a_page() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        BlockPool(0, 1)


def test_the_next_pages_are_those_that_are_taken_next_and_fresh_ones_come_by_number() -> None:
    pool = BlockPool(7, 1)
    first, second = pool.allocate(0, 2, ALICE), pool.allocate(0, 1, ALICE)
    pool.release(first, ALICE)
    assert pool.next_pages(4) == [2, 1, 4, 5]
    assert pool.next_pages(100) == [2, 1, 4, 5, 6, 7]
    assert pool.next_pages(0) == []
    assert second.pages == (3,)
    assert [pool.allocate(0, 1, ALICE).pages[0] for _ in range(4)] == [2, 1, 4, 5]
