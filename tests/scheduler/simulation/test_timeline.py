"""The course of a run fits into a bounded number of points, however long it is."""

from __future__ import annotations

from scheduler.simulation.timeline import Moment, Timeline


def test_a_long_run_is_kept_in_few_moments_that_are_equally_far_apart() -> None:
    timeline = Timeline(max_moments=8)
    for step in range(100):
        timeline.add(step, Moment(float(step), step, 0, 0, 0))

    assert timeline.stride == 16
    assert [moment.held_pages for moment in timeline.moments] == [0, 16, 32, 48, 64, 80, 96]


def test_a_short_run_is_kept_whole() -> None:
    timeline = Timeline(max_moments=8)
    for step in range(7):
        timeline.add(step, Moment(float(step), step, 0, 0, 0))

    assert [moment.held_pages for moment in timeline.moments] == list(range(7))
