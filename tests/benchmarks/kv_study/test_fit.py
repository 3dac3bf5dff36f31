"""Fits of made-up points whose exponents, slopes and margins are known."""

from __future__ import annotations

import math

import pytest

from benchmarks.kv_study.fit import fit_line, fit_power_law, interpolate


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, -0.5])
def test_the_exponent_of_an_exact_power_law_is_found_without_a_margin(exponent: float) -> None:
    lengths = [64, 128, 512, 1024, 4096]
    law = fit_power_law(lengths, [3 * length**exponent for length in lengths])
    assert law.exponent == pytest.approx(exponent, abs=1e-12)
    assert law.factor == pytest.approx(3, rel=1e-12)
    assert law.margin == pytest.approx(0, abs=1e-6)


def test_the_margin_is_students_t_times_the_slopes_error() -> None:
    line = fit_line([0, 1, 2, 3], [0, 2, 1, 3])
    assert (line.slope, line.intercept) == (pytest.approx(0.8), pytest.approx(0.3))
    # residuals -0.3, 0.9, -0.9, 0.3: their squares add up to 1.8, over 2 degrees of freedom and a spread of 5
    assert line.margin == pytest.approx(4.303 * math.sqrt(1.8 / 2 / 5))
    assert line.at(10) == pytest.approx(8.3)


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="three points"):
        fit_line([1, 2], [1, 2])
    with pytest.raises(ValueError, match="all points are at 2"):
        fit_line([2, 2, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="positive"):
        fit_power_law([1, 2, 3], [1, 0, 2])


def test_between_points_lie_straight_lines() -> None:
    xs, ys = [1.0, 3.0, 7.0], [10.0, 20.0, 0.0]
    assert [interpolate(xs, ys, x) for x in (1, 2, 3, 5, 7)] == [10, 15, 20, 10, 0]
    with pytest.raises(ValueError, match="8 is not between"):
        interpolate(xs, ys, 8)
