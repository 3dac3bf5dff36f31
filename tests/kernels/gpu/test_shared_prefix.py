"""Groups of sequences with common pages are found, the best ones, and used where they pay."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kernels.gpu.shared_prefix import PrefixGroup, find_groups, pays, plan_shared_prefix

CPU = torch.device("cpu")


def groups_of(tables: list[list[int]], full: list[int] | None = None) -> list[tuple[tuple[int, ...], int]]:
    array = np.array(tables, dtype=np.int32)
    pages = np.array(full if full is not None else [len(table) for table in tables])
    return [(group.members, group.num_pages) for group in find_groups(array, pages)]


def test_sequences_with_the_same_first_pages_form_a_group() -> None:
    assert groups_of([[5, 6, 7, 1], [9, 6, 7, 2], [5, 6, 8, 3], [5, 6, 7, 4]]) == [((0, 2, 3), 2)]


def test_pages_that_are_the_same_further_on_are_not_shared() -> None:
    assert groups_of([[1, 5, 6], [2, 5, 6]]) == []


def test_the_null_page_is_never_shared() -> None:
    assert groups_of([[0, 5], [0, 5]]) == []


def test_only_full_pages_are_shared() -> None:
    assert groups_of([[5, 6, 7], [5, 6, 7]], full=[3, 2]) == [((0, 1), 2)]
    assert groups_of([[5, 6, 7], [5, 6, 7]], full=[3, 0]) == []


def test_two_long_prefixes_beat_one_short_prefix_of_all() -> None:
    assert groups_of([[1, 2, 3, 4], [1, 2, 3, 4], [1, 7, 8, 9], [1, 7, 8, 9]]) == [((0, 1), 4), ((2, 3), 4)]


def test_one_prefix_of_many_beats_a_long_prefix_of_two() -> None:
    tables = [[1, 2, 3, 10 + row] for row in range(6)]
    tables[1][3] = tables[0][3]
    assert groups_of(tables) == [((0, 1, 2, 3, 4, 5), 3)]


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (4, 0)])
def test_batches_without_neighbours_or_pages_have_no_groups(shape: tuple[int, int]) -> None:
    assert find_groups(np.ones(shape, dtype=np.int32), np.full(shape[0], 4)) == []


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


def test_a_group_of_what_is_left_forms_beside_a_better_one() -> None:
    assert groups_of([[1, 2, 3, 4], [1, 5, 8, 8], [1, 2, 3, 4], [1, 6, 8, 8]]) == [((0, 2), 4), ((1, 3), 1)]


def test_groups_are_disjoint_true_and_save_nearly_what_the_best_of_all_partitions_does() -> None:
    random.seed(0)
    total = best_total = 0
    for _ in range(60):
        tables = [[random.randint(1, 2) for _ in range(4)] for _ in range(6)]
        groups = find_groups(np.array(tables), np.full(6, 4))
        members = [member for group in groups for member in group.members]
        assert len(members) == len(set(members))
        for group in groups:
            assert len({tuple(tables[member][: group.num_pages]) for member in group.members}) == 1
        best = max(saved_by(partition, tables) for partition in partitions(list(range(6))))
        saved = sum(group.saved_pages for group in groups)
        assert 0.75 * best <= saved <= best
        total, best_total = total + saved, best_total + best
    assert total > 0.97 * best_total


def test_a_long_common_prompt_is_planned() -> None:
    """Sequences 0, 2 and 3 share 400 full pages, 1 is alone, 4 has a chunk of a prompt and 5 is padding."""
    tables = np.arange(6 * 500, dtype=np.int32).reshape(6, 500) + 1
    tables[[2, 3, 4, 5], :400] = tables[0, :400]
    plan = plan_shared_prefix(
        tables,
        np.array([6405, 50, 6401, 7000, 6500, 0]),
        np.array([1, 1, 1, 1, 2, 1]),
        block_size=16,
        queries_per_kv_head=4,
        device=CPU,
    )
    assert plan is not None
    assert plan.members.tolist() == [0, 2, 3]
    assert plan.group_starts.tolist() == [0, 3]
    assert plan.prefix_lens.tolist() == [6400, 0, 6400, 6400, 0, 0]
    assert (plan.largest_group, plan.max_prefix_len, plan.max_own_len) == (3, 6400, 600)
    assert {tensor.dtype for tensor in (plan.members, plan.group_starts, plan.prefix_lens)} == {torch.int32}


def test_a_page_that_ends_with_the_newest_token_is_not_shared() -> None:
    tables = np.ones((2, 1000), dtype=np.int32) + np.arange(1000, dtype=np.int32)
    plan = plan_shared_prefix(
        tables, np.array([16000, 16000]), np.ones(2), block_size=16, queries_per_kv_head=1, device=CPU
    )
    assert plan is not None
    assert plan.prefix_lens.tolist() == [999 * 16] * 2


def test_a_short_common_prompt_is_not_worth_it() -> None:
    tables = np.ones((8, 4), dtype=np.int32) + np.arange(4, dtype=np.int32)
    lens = np.full(8, 64)
    assert plan_shared_prefix(tables, lens, np.ones(8), block_size=16, queries_per_kv_head=4, device=CPU) is None


@pytest.mark.parametrize(
    ("members", "num_pages", "expected"), [(2, 512, False), (2, 520, True), (64, 20, True), (64, 10, False)]
)
def test_sharing_pays_from_the_reads_it_saves(members: int, num_pages: int, expected: bool) -> None:
    assert pays([PrefixGroup(tuple(range(members)), num_pages)], 16, queries_per_kv_head=4) == expected
