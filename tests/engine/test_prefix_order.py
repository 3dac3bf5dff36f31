"""Rows in order of what they share, against a comparison of all pages."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.prefix_order import PrefixOrder


class Tables:
    """Rows that are written, and an order that is told."""

    def __init__(self, num_rows: int, num_blocks: int) -> None:
        self.pages = np.zeros((num_rows, num_blocks), dtype=np.int32)
        self.order = PrefixOrder(self.pages)
        self.lengths = [0] * num_rows

    def write(self, row: int, start: int, pages: list[int]) -> None:
        end = start + len(pages)
        self.pages[row, start:end] = pages
        self.order.note(row, start, end)
        self.lengths[row] = end

    def shared(self, one: int, other: int) -> int:
        """First pages that two rows have in common."""
        count = 0
        while count < min(self.lengths[one], self.lengths[other]):
            if self.pages[one, count] != self.pages[other, count]:
                break
            count += 1
        return count

    def found(self, rows: list[int]) -> dict[tuple[int, int], int]:
        """What any two of ``rows`` share by the order: the least of all neighbours between them."""
        order, num_shared = self.order.neighbours(np.array(rows, dtype=np.int64))
        placed = [rows[place] for place in order]
        assert sorted(placed) == sorted(rows)
        assert len(num_shared) == max(len(rows) - 1, 0)
        return {(placed[i], placed[j]): int(num_shared[i:j].min()) for j in range(len(rows)) for i in range(j)}


@pytest.mark.parametrize("seed", range(20))
def test_any_rows_are_said_to_share_what_they_share(seed: int) -> None:
    """Rows are written anew, from some block on, and appended to, with pages that nobody has."""
    source = random.Random(seed)
    tables, fresh = Tables(12, 8), iter(range(1000, 10**6))
    for _ in range(60):
        for _ in range(source.randrange(1, 4)):
            row = source.randrange(12)
            start = source.choice([0, 0, min(source.randrange(tables.lengths[row] + 1), 7)])
            count = source.randrange(8 - start) + 1
            is_append = 0 < start == tables.lengths[row]
            tables.write(row, start, [next(fresh) if is_append else source.randrange(1, 4) for _ in range(count)])
        rows = [row for row in range(12) if tables.lengths[row] and source.random() < 0.7]
        assert tables.found(rows) == {pair: tables.shared(*pair) for pair in tables.found(rows)}


def test_pages_that_are_the_same_further_on_are_not_shared() -> None:
    tables = Tables(2, 4)
    tables.write(0, 0, [1, 5, 6])
    tables.write(1, 0, [2, 5, 6])
    assert set(tables.found([0, 1]).values()) == {0}


def test_what_an_earlier_request_left_behind_a_rows_end_is_not_shared() -> None:
    tables = Tables(2, 4)
    tables.write(0, 0, [1, 2, 3, 4])
    tables.write(1, 0, [1, 2, 3, 4])
    tables.write(1, 0, [1, 2])
    assert set(tables.found([0, 1]).values()) == {2}


def test_a_copied_page_is_shared_no_more() -> None:
    tables = Tables(3, 4)
    for row in range(3):
        tables.write(row, 0, [1, 2, 3])
    tables.write(2, 1, [9, 3])
    assert {pair: count for pair, count in tables.found([0, 1, 2]).items() if 2 not in pair}.popitem()[1] == 3
    assert {count for pair, count in tables.found([0, 1, 2]).items() if 2 in pair} == {1}


def test_only_rewritten_rows_make_a_new_version() -> None:
    tables = Tables(2, 8)
    tables.write(0, 0, [1, 2])
    version = tables.order.version
    tables.write(0, 2, [3])
    tables.write(0, 3, [4, 5])
    assert tables.order.version == version
    tables.write(0, 4, [6])
    assert tables.order.version > version


def test_no_rows_and_one_share_nothing() -> None:
    tables = Tables(2, 8)
    assert tables.found([]) == {}
    tables.write(1, 0, [4])
    assert tables.found([1]) == {}
