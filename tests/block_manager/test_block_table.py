"""The table of one sequence: order of blocks, what kernels see, and the nulls that a window leaves behind."""

from __future__ import annotations

from block_manager.block import NULL_PAGE, KVBlock
from block_manager.block_table import BlockTable

NULLS = (NULL_PAGE, NULL_PAGE)


def block(number: int) -> KVBlock:
    return KVBlock(0, (2 * number + 1, 2 * number + 2))


def table_of(*blocks: KVBlock, nulls: int = 0) -> BlockTable:
    table = BlockTable(2)
    table.append_null(nulls)
    for one in blocks:
        table.append(one)
    return table


def test_appended_blocks_show_their_pages_in_order() -> None:
    a, b = block(0), block(1)
    table = table_of(a, b)
    assert table.pages == [(1, 2), (3, 4)]
    assert list(table.held()) == [a, b]
    assert (len(table), table.first_held) == (2, 0)


def test_leading_nulls_count_as_blocks_and_are_not_held() -> None:
    a = block(0)
    table = table_of(a, nulls=2)
    assert table.pages == [NULLS, NULLS, (1, 2)]
    assert list(table.held()) == [a]
    assert (len(table), table.first_held) == (3, 2)
    assert table.problems("t") == []


def test_blocks_before_a_window_come_back_once_first_to_last() -> None:
    blocks = [block(i) for i in range(4)]
    table = table_of(*blocks)
    assert table.drop_before(2) == blocks[:2]
    assert table.drop_before(2) == []
    assert table.drop_before(1) == []
    assert table.pages == [NULLS, NULLS, (5, 6), (7, 8)]
    assert list(table.page_ids) == [0, 0, 0, 0, 5, 6, 7, 8]
    assert table.drop_before(9) == blocks[2:]
    assert (len(table), table.first_held) == (4, 4)
    assert table.problems("t") == []


def test_the_tail_comes_back_last_to_first() -> None:
    blocks = [block(i) for i in range(4)]
    table = table_of(*blocks)
    assert table.drop_from(2) == [blocks[3], blocks[2]]
    assert table.pages == [(1, 2), (3, 4)]
    assert table.drop_from(2) == []
    assert table.drop_from(0) == [blocks[1], blocks[0]]
    assert len(table) == 0


def test_a_tail_cut_into_the_nulls_leaves_only_nulls() -> None:
    a = block(0)
    table = table_of(a, nulls=3)
    assert table.drop_from(1) == [a]
    assert table.pages == [NULLS]
    assert table.first_held == 1
    assert table.problems("t") == []


def test_a_copy_takes_the_place_of_its_original() -> None:
    a, b, copy = block(0), block(1), block(7)
    table = table_of(a, b)
    table.replace(1, copy)
    assert list(table.held()) == [a, copy]
    assert table.pages == [(1, 2), (15, 16)]
    assert list(table.page_ids) == [1, 2, 15, 16]


def test_problems_name_the_block_that_shows_the_wrong_pages_or_is_null_out_of_place() -> None:
    table = table_of(block(0), block(1))
    table.pages[1] = (9, 9)
    assert table.problems("s/full")[0] == "s/full block 1 shows pages (9, 9) and holds (3, 4)"
    table.pages[1] = (3, 4)
    table.page_ids[2] = 9
    assert table.problems("s/full") == ["s/full shows pages that are not its page ids"]
    table = table_of(block(0), block(1))
    table.blocks[0] = None
    table._show(0, NULLS)
    assert table.problems("s/full") == ["s/full block 0 is None, but the first held is 0"]
