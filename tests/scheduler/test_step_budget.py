"""How the tokens of a step are divided: streams first, long prompts within their part, the rest to all others."""

from __future__ import annotations

import pytest

from scheduler.step_budget import StepBudget


def test_every_stream_gets_its_token_before_any_prompt() -> None:
    budget = StepBudget(10, 4, 5, long_runs=False)
    assert budget.prefill_left == 6
    assert budget.prefill(5, 100) == 5
    assert budget.prefill(5, 100) == 1
    assert budget.prefill(5, 100) == 0
    assert [budget.decode() for _ in range(6)] == [1, 1, 1, 1, 0, 0]
    assert not budget.has_left_over


def test_more_streams_than_tokens_share_what_there_is() -> None:
    budget = StepBudget(3, 8, 5, long_runs=False)
    assert budget.prefill_left == 0
    assert budget.prefill(1, 100) == budget.prefill(100, 100) == 0
    assert [budget.decode() for _ in range(8)] == [1, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("num_tokens", "granted"), [(8, 8), (9, 8), (100, 8)])
def test_long_is_more_than_the_threshold(num_tokens: int, granted: int) -> None:
    budget = StepBudget(20, 0, 8, long_runs=False)
    assert budget.prefill(num_tokens, 100) == granted


def test_all_long_prompts_together_get_the_threshold() -> None:
    budget = StepBudget(20, 2, 8, long_runs=False)
    assert [budget.prefill(100, 5), budget.prefill(100, 5), budget.prefill(100, 5)] == [5, 3, 0]
    assert budget.prefill(8, 100) == 8  # short ones find room beside them
    assert budget.prefill(8, 100) == 2


def test_the_part_of_a_long_prompt_that_runs_is_kept_from_those_before_it() -> None:
    budget = StepBudget(20, 2, 8, long_runs=True)
    assert budget.prefill(8, 100) == 8
    assert budget.prefill(8, 100) == 2
    assert budget.prefill(100, 100) == 8
    assert budget.prefill_left == 0


def test_what_a_long_prompt_did_not_take_of_its_part_goes_to_those_behind_it() -> None:
    budget = StepBudget(20, 0, 8, long_runs=True)
    assert budget.prefill(100, 3) == 3
    assert [budget.prefill(8, 100), budget.prefill(8, 100), budget.prefill(8, 100)] == [8, 8, 1]


def test_no_more_is_kept_than_streams_leave() -> None:
    budget = StepBudget(10, 6, 8, long_runs=True)
    assert budget.prefill(3, 100) == 0
    assert budget.prefill(100, 100) == 4


def test_the_limit_of_a_request_bounds_its_share() -> None:
    budget = StepBudget(20, 0, 8, long_runs=False)
    assert budget.prefill(7, 3) == 3
    assert budget.prefill(100, 2) == 2
    assert budget.prefill_left == 15


def test_what_is_left_over_goes_to_prompts_only_when_nobody_streams() -> None:
    alone = StepBudget(20, 0, 8, long_runs=True)
    assert alone.prefill(100, 100) == 8
    assert alone.has_left_over
    assert [alone.left_over(5), alone.left_over(100)] == [5, 7]
    assert not alone.has_left_over
    beside_a_stream = StepBudget(20, 1, 8, long_runs=True)
    beside_a_stream.decode()
    assert beside_a_stream.prefill(100, 100) == 8
    assert not beside_a_stream.has_left_over


@pytest.mark.parametrize("long_runs", [False, True])
@pytest.mark.parametrize("threshold", [1, 5, 8, 50])
@pytest.mark.parametrize("decodes", [0, 1, 5, 8, 20])
def test_no_order_of_calls_hands_out_more_than_there_is(decodes: int, threshold: int, long_runs: bool) -> None:
    for wants in ([1, 2, 3], [30, 1, 7, 30], [7, 7, 7, 7], [100, 100, 3]):
        budget = StepBudget(16, decodes, threshold, long_runs=long_runs)
        shares = [budget.prefill(want, 12) for want in wants]
        longs = [share for share, want in zip(shares, wants, strict=True) if want > threshold]
        assert sum(longs) <= threshold
        left = [budget.left_over(want) for want in wants] if budget.has_left_over else []
        streams = [budget.decode() for _ in range(decodes)]
        assert min([*shares, *left, *streams], default=0) >= 0
        assert sum(shares) + sum(left) + sum(streams) <= 16
        assert sum(streams) == min(decodes, 16)
        assert not (left and decodes)


def test_at_last_long_prompts_may_start_on_what_is_left_over() -> None:
    budget = StepBudget(40, 0, 8, long_runs=False)
    assert [budget.prefill(12, 100), budget.prefill(100, 100)] == [8, 0]
    assert budget.left_over(4) == 4
    budget.open_to_long()
    assert [budget.prefill(10, 100), budget.prefill(100, 5), budget.prefill(100, 100)] == [10, 5, 13]
    assert not budget.has_left_over
