"""When waiting requests start, by hand: pages and places come back as answers end, prompts go one after the other."""

from __future__ import annotations

import pytest

from scheduler.forecast import AnswerLength, Load, expected_starts
from scheduler.step_time import StepTime


def line(base: float, per_token: float) -> StepTime:
    step_time = StepTime()
    for num_tokens in (1, 50, 100):
        step_time.observe(num_tokens, base + per_token * num_tokens)
    return step_time


def starts(
    running: list[Load], waiting: list[Load], *, pages: int, places: int, step_time: StepTime | None = None
) -> list[float]:
    """Steps of one second and ten milliseconds a token; the budget is 100 tokens, so 20 ms a token of a prompt."""
    return expected_starts(
        running,
        waiting,
        pages=pages,
        places=places,
        max_num_batched_tokens=100,
        step_time=step_time or line(1.0, 0.01),
    )


def test_where_there_is_room_requests_start_as_prompts_before_them_are_computed() -> None:
    waiting = [Load(2, 50, 10), Load(2, 100, 10), Load(2, 10, 10)]
    assert starts([], waiting, pages=10, places=8) == pytest.approx([0.0, 1.0, 3.0])


def test_prompts_that_run_are_finished_first() -> None:
    assert starts([Load(2, 50, 10)], [Load(2, 50, 10)], pages=10, places=8) == pytest.approx([1.0])


def test_who_wants_pages_waits_for_the_first_answers_to_end() -> None:
    """Two run: a step takes 1.02 s, so they end after 5.1 and 10.2 s, with 4 pages and 3."""
    running = [Load(3, 0, 10), Load(4, 0, 5)]
    assert starts(running, [Load(4, 0, 1)], pages=1, places=8) == pytest.approx([5.1])
    assert starts(running, [Load(5, 0, 1)], pages=1, places=8) == pytest.approx([5.1])
    assert starts(running, [Load(6, 0, 1)], pages=1, places=8) == pytest.approx([10.2])
    assert starts(running, [Load(1, 0, 1)], pages=1, places=8) == pytest.approx([0.0])


def test_who_wants_a_place_waits_for_one_and_the_next_for_the_next() -> None:
    running = [Load(1, 0, 10), Load(1, 0, 5)]
    waiting = [Load(1, 0, 2), Load(1, 0, 2), Load(1, 0, 2)]
    # the first has ended its two tokens 2.04 s after it started
    assert starts(running, waiting, pages=10, places=0) == pytest.approx([5.1, 5.1 + 2.04, 5.1 + 4.08])


def test_what_starts_takes_its_pages_from_those_behind_it() -> None:
    waiting = [Load(3, 0, 4), Load(3, 0, 4)]
    assert starts([], waiting, pages=5, places=8) == pytest.approx([0.0, 4 * 1.01])


def test_more_pages_than_there_will_ever_be_is_no_reason_to_wait_for_ever() -> None:
    assert starts([Load(1, 0, 3)], [Load(100, 0, 1)], pages=1, places=8) == pytest.approx([3 * 1.01])


def test_without_a_step_all_estimates_are_nought() -> None:
    waiting = [Load(3, 50, 4), Load(3, 50, 4)]
    assert starts([Load(3, 9, 9)], waiting, pages=0, places=0, step_time=StepTime()) == [0.0, 0.0]
    assert starts([], [], pages=0, places=0) == []


# ---- how long answers are


def test_before_any_answer_has_ended_all_it_may_have_is_expected() -> None:
    assert AnswerLength().left(10, 100) == 90.0


def test_answers_are_expected_to_be_as_long_as_those_before() -> None:
    length = AnswerLength(memory=4)
    length.observe(50, 100)
    assert length.left(0, 200) == 100.0
    assert length.left(30, 200) == 70.0
    length.observe(100, 100)  # a quarter of the way from 0.5 to 1
    assert length.left(0, 200) == pytest.approx(125.0)


def test_who_is_longer_than_expected_is_half_way_to_its_bound() -> None:
    length = AnswerLength()
    length.observe(10, 100)
    assert length.left(9, 100) == pytest.approx(1.0)
    assert length.left(10, 100) == 45.0
    assert length.left(100, 100) == 0.0
