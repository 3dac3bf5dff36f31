"""The best groups of sequences with common first pages are chosen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from kernels.gpu.shared_prefix import choose_groups


def ordered(tables: list[list[int]]) -> tuple[list[int], np.ndarray]:
    """Rows in the order of their pages, and what neighbours share."""
    order = sorted(range(len(tables)), key=lambda row: tables[row])
    shared = []
    for one, other in itertools.pairwise(order):
        same = [a == b for a, b in zip(tables[one], tables[other], strict=False)]
        shared.append([*same, False].index(False))
    return order, np.array(shared, dtype=np.int64)


def groups_of(tables: list[list[int]], least_gain: float = 0.0) -> list[tuple[tuple[int, ...], int]]:
    """Members and pages of each group, by the first member."""
    order, shared = ordered(tables)
    groups = choose_groups(shared, least_gain)
    ends = np.cumsum(groups.sizes)
    assert len(groups.members) == (ends[-1] if len(groups) else 0)
    return sorted(
        (tuple(sorted(order[place] for place in groups.members[end - size : end])), int(pages))
        for end, size, pages in zip(ends, groups.sizes, groups.num_pages, strict=True)
    )


def test_sequences_with_the_same_first_pages_form_a_group() -> None:
    assert groups_of([[5, 6, 7, 1], [9, 6, 7, 2], [5, 6, 8, 3], [5, 6, 7, 4]]) == [((0, 2, 3), 2)]


def test_groups_stand_beside_each_other_and_beside_rows_that_share_nothing() -> None:
    tables = [[1, 2], [8, 8], [4, 5], [1, 2], [4, 5], [9, 9], [4, 5]]
    assert groups_of(tables) == [((0, 3), 2), ((2, 4, 6), 2)]


def test_two_long_prefixes_beat_one_short_prefix_of_all() -> None:
    assert groups_of([[1, 2, 3, 4], [1, 2, 3, 4], [1, 7, 8, 9], [1, 7, 8, 9]]) == [((0, 1), 4), ((2, 3), 4)]


def test_one_prefix_of_many_beats_a_long_prefix_of_two() -> None:
    tables = [[1, 2, 3, 10 + row] for row in range(6)]
    tables[1][3] = tables[0][3]
    assert groups_of(tables) == [((0, 1, 2, 3, 4, 5), 3)]


def test_a_group_of_what_is_left_forms_beside_a_better_one() -> None:
    assert groups_of([[1, 2, 3, 4], [1, 5, 8, 8], [1, 2, 3, 4], [1, 6, 8, 8]]) == [((0, 2), 4), ((1, 3), 1)]


@pytest.mark.parametrize("count", [0, 1])
def test_without_neighbours_there_are_no_groups(count: int) -> None:
    assert groups_of([[1, 2]] * count) == []


def test_groups_that_save_too_little_for_each_member_are_left_out() -> None:
    tables = [[1, 2, 3], [1, 2, 3], [7, 8, 9], [7, 8, 9], [7, 8, 9]]
    assert groups_of(tables, 1.4) == [((0, 1), 3), ((2, 3, 4), 3)]
    assert groups_of(tables, 1.5) == [((2, 3, 4), 3)]
    assert groups_of(tables, 2.0) == []


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    if not rows:
        yield []
        return
    for rest in partitions(rows[1:]):
        yield [[rows[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [rows[0], *rest[index]], *rest[index + 1 :]]


def saved_by(partition: list[list[int]], tables: list[list[int]]) -> int:
    saved = 0
    for members in partition:
        same = [len({tables[member][column] for member in members}) == 1 for column in range(len(tables[0]))]
        saved += (len(members) - 1) * [*same, False].index(False)
    return saved


def test_groups_are_disjoint_true_and_save_nearly_what_the_best_of_all_partitions_does() -> None:
    random.seed(0)
    total = best_total = 0
    for _ in range(60):
        tables = [[random.randint(1, 2) for _ in range(4)] for _ in range(6)]
        groups = groups_of(tables)
        members = [member for group, _ in groups for member in group]
        assert len(members) == len(set(members))
        for group, num_pages in groups:
            assert len({tuple(tables[member][:num_pages]) for member in group}) == 1
        best = max(saved_by(partition, tables) for partition in partitions(list(range(6))))
        saved = choose_groups(ordered(tables)[1]).saved_pages
        assert saved == sum((len(group) - 1) * num_pages for group, num_pages in groups)
        assert 0.75 * best <= saved <= best
        total, best_total = total + saved, best_total + best
    assert total > 0.97 * best_total
