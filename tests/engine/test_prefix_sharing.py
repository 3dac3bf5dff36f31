"""The plan by which a step reads common pages once: who is in it, and when it is made anew."""

from __future__ import annotations

import numpy as np
import pytest

from engine.prefix_order import PrefixOrder
from engine.prefix_sharing import PrefixPlan, PrefixSharing
from kernels.gpu.sharing_cost import SharingCost
from kernels.roofline import AttentionShape, DataSheet

NARROW = DataSheet("all but the memory is fast", bandwidth=1e3, flops_16_bit=1e30, flops_8_bit=1e30)
COST = SharingCost(NARROW, AttentionShape(4, 1, 128), (None,), weight_bytes=0)


class Step:
    """Six rows, of which 0, 2, 3, 4 and 5 begin with the same 400 pages, of 16 tokens."""

    def __init__(self, cost: SharingCost = COST) -> None:
        self.tables = np.arange(6 * 500, dtype=np.int32).reshape(6, 500) + 1
        self.tables[[2, 3, 4, 5], :400] = self.tables[0, :400]
        self.order = PrefixOrder(self.tables)
        for row in range(6):
            self.order.note(row, 0, 450)
        self.sharing = PrefixSharing(self.order, cost, 16)

    def plan(
        self, rows: list[int], counts: list[int], lens: list[int], *, is_recorded: bool = True
    ) -> PrefixPlan | None:
        arrays = (np.array(part, dtype=np.int64) for part in (rows, counts, lens))
        return self.sharing.plan(*arrays, is_recorded=is_recorded)


def shared(plan: PrefixPlan | None) -> tuple[list[int], list[int], list[int]]:
    assert plan is not None
    return sorted(plan.members.tolist()), plan.group_starts.tolist(), plan.prefix_lens.tolist()


def test_a_long_common_prompt_is_planned_for_decodes_alone() -> None:
    """By places in the step: 0, 2 and 4 share, 1 is alone, 3 has a chunk of a prompt."""
    plan = Step().plan([3, 1, 0, 4, 5], [1, 1, 1, 2, 1], [6405, 50, 6401, 7000, 6500])
    assert shared(plan) == ([0, 2, 4], [0, 3], [6400, 0, 6400, 0, 6400])
    assert (plan.bounds.largest_group, plan.bounds.max_prefix_len, plan.bounds.max_own_len) == (3, 6400, 100)


def test_a_page_that_ends_with_the_newest_token_is_not_shared() -> None:
    assert shared(Step().plan([0, 2], [1, 1], [6400, 6400]))[2] == [399 * 16] * 2
    assert shared(Step().plan([0, 2], [1, 1], [6401, 6400]))[2] == [399 * 16] * 2
    assert shared(Step().plan([0, 2], [1, 1], [6401, 6401]))[2] == [6400] * 2


def test_a_plan_is_kept_while_its_sequences_grow_and_made_anew_when_rows_change() -> None:
    step = Step()
    first = step.plan([0, 2, 3], [1, 1, 1], [6405, 6405, 6405])
    grown = step.plan([0, 2, 3], [1, 1, 1], [6406, 6406, 6406])
    assert grown.members is first.members
    assert grown.bounds.max_own_len == first.bounds.max_own_len + 1
    assert shared(step.plan([0, 2], [1, 1], [6407, 6407]))[0] == [0, 1]
    assert shared(step.plan([2, 1, 0], [1, 1, 1], [6407, 6407, 6407]))[0] == [0, 2]
    assert step.plan([2, 1, 0], [1, 1, 2], [6407, 6407, 6407]) is None


def test_a_row_that_gets_another_page_leaves_its_group() -> None:
    step = Step()
    assert shared(step.plan([0, 2, 3], [1, 1, 1], [6405] * 3))[0] == [0, 1, 2]
    step.tables[2, 0] = 9999
    step.order.note(2, 0, 450)
    assert shared(step.plan([0, 2, 3], [1, 1, 1], [6405] * 3))[0] == [0, 2]


def test_groups_follow_each_other_in_the_plan() -> None:
    step = Step()
    step.tables[[4, 5], 0] = 9999
    for row in (4, 5):
        step.order.note(row, 0, 450)
    plan = step.plan([4, 0, 5, 2, 3], [1] * 5, [6405] * 5)
    groups = [
        sorted(plan.members[start:end].tolist())
        for start, end in zip(plan.group_starts, plan.group_starts[1:], strict=False)
    ]
    assert sorted(groups) == [[0, 2], [1, 3, 4]]
    assert plan.bounds.largest_group == 3


@pytest.mark.parametrize("rows", [[], [0], [0, 1]])
def test_without_anyone_to_share_with_there_is_no_plan(rows: list[int]) -> None:
    assert Step().plan(rows, [1] * len(rows), [6405] * len(rows)) is None


def test_a_plan_that_costs_more_than_it_saves_is_none() -> None:
    wide = DataSheet("memory is fast too", bandwidth=1e15, flops_16_bit=1e30, flops_8_bit=1e30)
    step = Step(SharingCost(wide, COST.shape, (None,), weight_bytes=0))
    assert step.plan([0, 2], [1, 1], [6405, 6405]) is None
