"""The page map: one row per page, which says what the block of that page says."""

from __future__ import annotations

from block_manager.block import KVBlock
from block_manager.page_map import PageMap, PageState


def row(pages: PageMap, page: int) -> tuple[PageState, int, int, int, int]:
    columns = pages.copy()
    return (
        PageState(columns.states[page]),
        columns.groups[page],
        columns.ref_counts[page],
        columns.holders[page],
        columns.hash_prefixes[page],
    )


def test_a_block_goes_from_free_to_held_shared_cached_and_free() -> None:
    pages = PageMap(4)
    block = KVBlock(1, (2, 4))
    assert row(pages, 2) == (PageState.FREE, 0, 0, 0, 0)
    block.holders.add(7)
    pages.set_held(block, 7)
    assert row(pages, 2) == row(pages, 4) == (PageState.HELD, 1, 1, 7, 0)
    block.block_hash = bytes(28) + b"\x01\x02\x03\x04"
    pages.set_hash(block)
    block.holders.add(8)
    pages.set_holders(block)
    state, group, ref_count, holder, prefix = row(pages, 4)
    assert (state, group, ref_count, prefix) == (PageState.HELD, 1, 2, 0x01020304)
    assert holder in {7, 8}
    block.holders.clear()
    block.last_used = 12.5
    pages.set_cached(block)
    assert row(pages, 2) == (PageState.CACHED, 1, 0, 0, 0x01020304)
    assert pages.copy().last_used[2] == 12.5
    pages.set_free(block)
    assert row(pages, 2)[0] is PageState.FREE
    assert row(pages, 2)[2:] == (0, 0, 0)
    assert [row(pages, page)[0] for page in (0, 1, 3)] == [PageState.FREE] * 3


def test_a_hash_that_is_lost_leaves_no_prefix() -> None:
    pages = PageMap(1)
    block = KVBlock(0, (1,))
    block.block_hash = b"\xff" * 32
    pages.set_hash(block)
    assert row(pages, 1)[4] == 0xFFFFFFFF
    block.block_hash = None
    pages.set_hash(block)
    assert row(pages, 1)[4] == 0


def test_a_copy_does_not_follow_later_changes() -> None:
    pages = PageMap(2)
    before = pages.copy()
    block = KVBlock(0, (1,))
    block.holders.add(3)
    pages.set_held(block, 3)
    assert (before.states[1], before.ref_counts[1], before.holders[1]) == (PageState.FREE, 0, 0)


def test_a_right_row_has_no_problems_and_each_wrong_column_has_one() -> None:
    def held() -> tuple[PageMap, KVBlock]:
        pages, block = PageMap(1), KVBlock(1, (1,))
        block.holders.add(5)
        pages.set_held(block, 5)
        return pages, block

    pages, block = held()
    assert pages.problems(1, "x", PageState.HELD, block) == []
    assert pages.problems(1, "x", PageState.FREE, None) == ["page 1 is in x, but the page map shows it as HELD"]
    block.holders.add(6)
    assert (
        "has ref_count and hash (2, 0), but the page map shows (1, 0)"
        in pages.problems(1, "x", PageState.HELD, block)[0]
    )
    pages, block = held()
    block.holders = {6}
    (problem,) = pages.problems(1, "x", PageState.HELD, block)
    assert problem == "page 1 in x is not held by sequence 5, which the page map shows"
    pages, block = held()
    block.group = 0
    (problem,) = pages.problems(1, "x", PageState.HELD, block)
    assert problem == "page 1 in x is of group 0; the page map shows 1"
