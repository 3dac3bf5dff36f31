"""Percentiles by nearest rank, exact for values that lie apart and within 1 % for others."""

from __future__ import annotations

import math
from random import Random

import pytest

from scheduler.simulation.histogram import Histogram, Percentiles


def test_values_that_lie_apart_give_exact_percentiles() -> None:
    histogram = Histogram()
    for value in range(1, 101):
        histogram.add(2.0**-value)
    histogram.add(0.0, times=100)

    assert [histogram.percentile(share) for share in (0.5, 0.505, 1.0)] == [0.0, 2.0**-100, 0.5]


def test_a_value_that_was_seen_often_counts_often() -> None:
    histogram = Histogram()
    histogram.add(3.0, times=98)
    histogram.add(7.0)
    histogram.add(9.0)

    assert histogram.percentiles() == Percentiles(3.0, 3.0, 7.0, 9.0)


def test_no_values_have_zero_percentiles() -> None:
    assert Histogram().percentiles() == Percentiles(0.0, 0.0, 0.0, 0.0)


def test_values_beyond_count_as_infinite() -> None:
    histogram = Histogram()
    histogram.add(1.0, times=99)

    assert histogram.percentile(0.99, 1) == 1.0
    assert histogram.percentile(0.99, 2) == math.inf


def test_percentiles_of_many_values_are_within_one_per_cent_in_few_buckets() -> None:
    random, histogram, values = Random(1), Histogram(), []
    for _ in range(20_000):
        values.append(random.lognormvariate(-3, 2))
        histogram.add(values[-1])
    values.sort()

    assert histogram.percentile(0.9) == pytest.approx(values[math.ceil(0.9 * 20_000) - 1], rel=0.01)
    assert len(histogram._counts) < 2000
