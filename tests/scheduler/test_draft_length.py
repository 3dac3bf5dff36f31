"""How many tokens to guess: by what came of earlier guesses, and what one costs."""

from __future__ import annotations

import pytest

from scheduler.draft_length import KEPT, RETRY_AFTER, RETRY_TOKENS, DraftLength


def length(right: int, wrong: int) -> DraftLength:
    """After guesses of one token that were right, then such that were wrong."""
    made = DraftLength()
    for is_right in [1] * right + [0] * wrong:
        made.observe(1, is_right)
    return made


def expected_gain(acceptance: float, cost: float, tokens: int) -> float:
    return sum(acceptance**place - cost for place in range(1, tokens + 1))


def test_the_acceptance_is_the_rate_of_right_tokens_that_were_looked_at() -> None:
    made = DraftLength()
    made.observe(4, 4)
    assert made.acceptance == pytest.approx((KEPT + 4) / (KEPT + 4 + KEPT))
    made.observe(4, 1)  # the two behind the wrong one tell nothing
    right, wrong = KEPT * (KEPT + 4) + 1, KEPT * KEPT + 1
    assert made.acceptance == pytest.approx(right / (right + wrong))


@pytest.mark.parametrize("cost", [0.05, 0.1, 0.3, 0.45])
@pytest.mark.parametrize("right", [1, 2, 5, 20])
def test_the_length_is_the_one_that_gains_most(cost: float, right: int) -> None:
    made = length(right, 1)
    gains = [expected_gain(made.acceptance, cost, tokens) for tokens in range(17)]
    assert made.choose(16, cost) == gains.index(max(gains))


def test_guesses_get_longer_while_they_are_right_up_to_the_limit() -> None:
    lengths = [length(right, 0).choose(8, 0.2) for right in range(12)]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (2, 8)


def test_rightness_for_ever_breaks_nothing() -> None:
    made = length(10_000, 0)
    assert made.choose(8, 0.1) == 8
    assert made.choose(8, 0.99) == 0


def test_a_token_that_costs_nothing_is_always_guessed() -> None:
    assert length(0, 50).choose(8, 0.0) == 8


def test_where_guesses_are_wrong_none_is_made_but_a_short_one_now_and_then() -> None:
    made = length(0, 20)
    answers = [made.choose(8, 0.2) for _ in range(2 * (RETRY_AFTER + 1))]
    assert answers == 2 * ([0] * RETRY_AFTER + [RETRY_TOKENS])


def test_after_right_retries_guesses_are_made_again() -> None:
    made = length(0, 20)
    assert made.choose(8, 0.2) == 0
    for _ in range(2):
        made.observe(RETRY_TOKENS, RETRY_TOKENS)
    assert made.choose(8, 0.2) > 0


def test_where_a_token_costs_nearly_what_a_right_one_brings_nobody_tries_again() -> None:
    made = length(0, 20)
    assert [made.choose(8, 0.6) for _ in range(5 * RETRY_AFTER)] == [0] * 5 * RETRY_AFTER
