"""Which drafts stand; and that drawing and comparing is speculative sampling."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from engine.verification import num_accepted


@pytest.mark.parametrize(
    ("drafts", "drawn", "accepted"),
    [([], [], 0), ([5], [5], 1), ([5], [6], 0), ([5, 6, 7], [5, 6, 7], 3), ([5, 6, 7], [5, 9, 7], 1)],
)
def test_drafts_stand_up_to_the_first_that_was_not_drawn(drafts: list[int], drawn: list[int], accepted: int) -> None:
    assert num_accepted(drafts, drawn) == accepted


@pytest.mark.parametrize("draft", [0, 1, 2, 3])
def test_one_draw_accepts_and_replaces_as_often_as_rejection_sampling_does(draft: int) -> None:
    """Every one of 20 equally likely draws from p, against the two steps of the paper in fractions."""
    p = [Fraction(1, 20), Fraction(9, 20), Fraction(10, 20), Fraction(0)]
    draws = [token for token, weight in enumerate(p) for _ in range(int(weight * 20))]
    accepted, replaced = Fraction(0), Counter[int]()
    for token in draws:
        if num_accepted([draft], [token]):
            accepted += Fraction(1, 20)
        else:
            replaced[token] += Fraction(1, 20)
    assert accepted == p[draft]  # min(1, p / q) of a proposal that is certain
    rest = [max(Fraction(0), weight - (token == draft)) for token, weight in enumerate(p)]
    for token, weight in enumerate(rest):
        assert replaced[token] == (1 - accepted) * weight / sum(rest)
