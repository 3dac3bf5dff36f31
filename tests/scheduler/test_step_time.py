"""How long steps take, learnt from those that ran."""

from __future__ import annotations

import pytest

from scheduler.step_time import StepTime


def test_nothing_is_known_before_the_first_step() -> None:
    step_time = StepTime()
    assert not step_time.is_known
    assert step_time.per_token == step_time.seconds(100) == 0.0


def test_a_straight_line_is_found_exactly() -> None:
    step_time = StepTime()
    for num_tokens in (1, 8, 300, 512, 17, 1):
        step_time.observe(num_tokens, 0.02 + 0.0005 * num_tokens)
    assert step_time.per_token == pytest.approx(0.0005)
    for num_tokens in (0, 1, 100, 4096):
        assert step_time.seconds(num_tokens) == pytest.approx(0.02 + 0.0005 * num_tokens)


def test_steps_that_were_all_alike_say_their_seconds_over_their_tokens() -> None:
    step_time = StepTime()
    for _ in range(50):
        step_time.observe(10, 0.5)
    assert step_time.per_token == pytest.approx(0.05)
    assert step_time.seconds(10) == pytest.approx(0.5)
    assert step_time.seconds(30) == pytest.approx(1.5)
    assert step_time.seconds(0) == pytest.approx(0.0)


def test_no_estimate_is_negative_and_no_token_makes_a_step_shorter() -> None:
    step_time = StepTime()
    step_time.observe(1, 5.0)  # a first step that had to compile something
    step_time.observe(100, 0.1)
    assert step_time.per_token == pytest.approx(5.1 / 101, rel=0.01)
    assert step_time.seconds(0) >= 0.0
    assert step_time.seconds(200) > step_time.seconds(100) > step_time.seconds(1)


def test_older_steps_count_less_and_less() -> None:
    step_time = StepTime(memory=20)
    for _ in range(200):
        step_time.observe(10, 1.0)
    for number in range(200):
        step_time.observe(10 + number % 7, 0.1 + 0.01 * (10 + number % 7))
    assert step_time.per_token == pytest.approx(0.01, rel=0.02)
    assert step_time.seconds(10) == pytest.approx(0.2, rel=0.02)


def test_large_counts_do_not_spoil_the_fit() -> None:
    step_time = StepTime()
    for number in range(5000):
        num_tokens = 8000 + number % 192
        step_time.observe(num_tokens, 0.01 + 1e-5 * num_tokens)
    assert step_time.seconds(8192) == pytest.approx(0.01 + 1e-5 * 8192, rel=1e-6)
    assert step_time.seconds(1) >= 0.0
