"""Jain's index, over all service and over the time in which tenants competed."""

from __future__ import annotations

import pytest

from scheduler.simulation.fairness import Fairness, jain_index


@pytest.mark.parametrize(
    ("shares", "index"),
    [
        ([5.0], 1.0),
        ([2.0, 2.0, 2.0], 1.0),
        ([1.0, 0.0, 0.0, 0.0], 0.25),
        ([1.0, 2.0, 3.0], 36 / 42),
        ([0.0, 0.0], 1.0),
    ],
)
def test_the_index_of_known_shares(shares: list[float], index: float) -> None:
    assert jain_index(shares) == pytest.approx(index)


def test_service_counts_by_weight() -> None:
    fairness = Fairness({"heavy": 3.0})
    fairness.arrived("heavy").service = 300.0
    fairness.arrived("light").service = 100.0

    assert fairness.index == pytest.approx(1.0)


def test_only_tenants_that_waited_all_the_window_are_compared() -> None:
    fairness = Fairness({})
    first, second, third = (fairness.arrived(name) for name in ("first", "second", "third"))
    fairness.end_window()  # they came after it had begun
    assert fairness.index_while_waiting is None

    first.service, second.service, third.service = 30.0, 10.0, 500.0
    third.left_queue()
    fairness.end_window()

    assert fairness.index_while_waiting == pytest.approx(40**2 / (2 * (30**2 + 10**2)))


def test_a_window_counts_what_it_brought_by_weight() -> None:
    fairness = Fairness({"heavy": 3.0})
    heavy, light = fairness.arrived("heavy"), fairness.arrived("light")
    heavy.service = 1000.0
    fairness.end_window()
    heavy.service, light.service = 1300.0, 100.0
    fairness.end_window()

    assert fairness.index_while_waiting == pytest.approx(1.0)


def test_a_window_without_competition_does_not_count() -> None:
    fairness = Fairness({})
    fairness.arrived("first")
    second = fairness.arrived("second")
    second.left_queue()
    fairness.end_window()
    fairness.end_window()

    assert fairness.index_while_waiting is None
