"""How far told times were from real ones."""

from __future__ import annotations

import pytest

from scheduler.simulation.forecast_error import ErrorSummary, ForecastError, RetryWatch


def test_errors_are_medians_and_a_share() -> None:
    error = ForecastError()
    for told, real in [(2.0, 1.0), (1.0, 4.0), (3.0, 3.0)]:
        error.compare(told, real)

    assert error.summary() == ErrorSummary(3, 1.0, 1.0, pytest.approx(2 / 3))


def test_who_did_not_have_to_wait_is_not_compared() -> None:
    error = ForecastError()
    error.compare(2.0, 0.0)

    assert error.summary() == ErrorSummary(0, 0.0, 0.0, 0.0)


def test_a_refused_client_waits_for_its_own_place() -> None:
    watch = RetryWatch()
    watch.refused(4, now=10.0, told=8.0)
    watch.refused(3, now=10.0, told=5.0)

    watch.freed(2, now=11.0)
    assert watch.error.summary().count == 0
    watch.freed(3, now=14.0)
    assert watch.error.summary() == ErrorSummary(1, 1.0, 1.25, 1.0)
    watch.freed(9, now=30.0)
    assert watch.error.summary() == ErrorSummary(2, 1.0, pytest.approx(0.4), 0.5)


def test_real_times_are_cut_to_what_can_be_told() -> None:
    watch = RetryWatch()
    watch.refused(1, now=10.0, told=1.0)
    watch.refused(2, now=10.0, told=120.0)
    watch.freed(1, now=10.01)
    watch.freed(2, now=900.0)

    assert watch.error.summary() == ErrorSummary(2, 0.0, 1.0, 1.0)
