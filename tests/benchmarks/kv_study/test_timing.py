"""Totals, quarters and growth of made-up times whose law is known; and a real run's shape."""

from __future__ import annotations

import pytest

from benchmarks.kv_study.growth import Growth, Slopes
from benchmarks.kv_study.study import Study
from benchmarks.kv_study.timing import Generation, Recompute, Timing

LENGTHS = (1, 64, 256, 1024)
LINEAR = tuple(Recompute(length, 2e-3 * length) for length in LENGTHS)
STEADY = Generation("steady", (None,), tuple(5e-3 for _ in range(1024)))


def test_totals_are_sums_of_what_lies_between_the_samples() -> None:
    without, kept = Timing(LINEAR, (STEADY,)).totals()
    assert len(without) == len(kept) == 1024
    assert without[9] == pytest.approx(2e-3 * (10 * 11 / 2))
    assert without[-1] == pytest.approx(2e-3 * (1024 * 1025 / 2))
    assert kept[-1] == pytest.approx(1024 * 5e-3)


def test_time_that_grows_with_the_text_makes_a_square_and_steady_time_a_line() -> None:
    growth = Growth.of(Timing(LINEAR, (STEADY,)))
    assert growth.lengths == (64, 96, 128, 192, 256, 384, 512, 768, 1024)
    assert growth.late_from == 256
    assert growth.exponent(growth.total_without).exponent == pytest.approx(2.0, abs=0.01)
    assert growth.exponent(growth.total_with).exponent == pytest.approx(1.0, abs=1e-9)
    assert growth.exponent(growth.token_without, late=True).exponent == pytest.approx(1.0, abs=1e-9)
    assert growth.exponent(growth.token_with).exponent == pytest.approx(0.0, abs=1e-9)


def test_quarters_are_medians_of_their_own_tokens() -> None:
    one = Generation("growing", (None,), tuple(float(index) for index in range(400)))
    assert [one.quarter(number) for number in range(4)] == [49.5, 149.5, 249.5, 349.5]


def test_quantiles_lie_between_the_ordered_steps() -> None:
    one = Generation("counting", (None,), tuple(float(index) for index in range(127, -1, -1)))
    assert one.binned() == ([32.0, 96.0], [95.5, 31.5])
    assert one.binned(64, quantile=0.0) == ([96.0], [0.0])
    assert one.slowest() == pytest.approx(0.99 * 127)


def test_slopes_are_told_apart_where_windows_are_full() -> None:
    seconds = [1.0 + 3e-3 * min(index + 0.5, 256) + 1e-3 * (index + 0.5) for index in range(1024)]
    slopes = Slopes.of(Generation("windowed", (None, 256), tuple(seconds)))
    assert slopes.filling is not None
    assert slopes.full is not None
    assert slopes.filling.slope == pytest.approx(4e-3)
    assert slopes.full.slope == pytest.approx(1e-3)
    assert Slopes.of(Generation("all", (None,), tuple(seconds))).filling is None


def test_every_token_is_timed_as_the_model_is_and_with_all_layers_full(study: Study) -> None:
    own, everything = study.timing.generations
    assert own.windows == (32, 32, 32, 32, 32, None, 32)
    assert everything.windows == (None,) * 7
    assert len(own.seconds) == len(everything.seconds) == study.setting.sizes.generated
    assert all(seconds > 0 for one in study.timing.generations for seconds in one.seconds)
    assert [one.length for one in study.timing.recompute] == [1, 64, 128, 320]
