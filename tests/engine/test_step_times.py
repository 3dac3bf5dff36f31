"""StepTimes: the engine's time in steps, each second counted once and in one part."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from block_manager.block_table import NO_CHANGE
from engine.messages import STEP_PARTS
from engine.step_times import StepTimes
from scheduler.batch import ScheduledBatch, ScheduledRequest


def batch(*lengths: int) -> ScheduledBatch:
    shares = [
        ScheduledRequest(f"r{number}", 1, [1] * length, 0, True, True, (f"r{number}",), 0, NO_CHANGE)
        for number, length in enumerate(lengths)
    ]
    return ScheduledBatch(tuple(shares))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(clock: Clock) -> StepTimes:
    return StepTimes(clock)


def parts(times: StepTimes) -> tuple[float, ...]:
    return tuple(times.parts[part] for part in STEP_PARTS)


def test_a_step_is_divided_where_drawing_comes_last(clock: Clock, times: StepTimes) -> None:
    times.begin()
    clock.now += 0.25
    times.lap("schedule")
    clock.now += 2.0
    times.lap_of_wait(sample_seconds=0.5)
    clock.now += 0.125
    times.lap("output")
    times.end(batch(5, 1))
    assert parts(times) == (0.25, 1.5, 0.5, 0.125)
    assert (times.steps, times.seconds) == (1, 2.375)
    assert (times.durations.total, times.tokens.total, times.sequences.total) == (2.375, 6.0, 2.0)
    assert [sum(one.counts) for one in (times.durations, times.tokens, times.sequences)] == [1, 1, 1]
    times.begin()
    clock.now += 1.0
    times.lap("output")
    times.end(batch(1))
    assert (times.steps, times.seconds, times.durations.total) == (2, 3.375, 3.375)


def test_of_a_step_that_ran_beside_others_only_the_wait_counts(clock: Clock, times: StepTimes) -> None:
    times.begin()
    clock.now += 0.25
    times.lap("schedule")
    clock.now += 0.25
    times.lap_of_wait()  # the first is launched, and nothing has ended yet
    assert times.seconds == 0.0
    clock.now += 50.0  # outside a step
    times.begin()
    clock.now += 0.5
    times.lap("schedule")
    times.lap_of_wait()
    clock.now += 1.0
    times.lap_of_wait(sample_seconds=3.0)  # it drew while the next one was scheduled
    times.lap("output")
    times.end(batch(1))
    assert parts(times) == (0.75, 0.25, 1.0, 0.0)
    assert times.durations.total == times.seconds == 2.0


def test_time_of_which_no_step_came_is_not_counted(clock: Clock, times: StepTimes) -> None:
    times.begin()
    clock.now += 3.0
    times.lap("schedule")
    times.drop()
    times.begin()
    clock.now += 1.0
    times.lap("output")
    times.end(batch(1))
    assert parts(times) == (0.0, 0.0, 0.0, 1.0)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_parts_and_durations_add_up_whatever_happens(seed: int) -> None:
    clock, source = Clock(), random.Random(seed)
    times = StepTimes(clock)
    for _ in range(20):
        times.begin()
        for _ in range(source.randrange(6)):
            clock.now += source.random()
            if source.random() < 0.5:
                times.lap(source.choice(STEP_PARTS))
            else:
                times.lap_of_wait(2 * source.random())
        if source.random() < 0.6:
            times.end(batch(1))
        elif source.random() < 0.5:
            times.drop()
    assert times.seconds == sum(times.parts.values())
    assert times.durations.total == pytest.approx(times.seconds)
    assert min(times.parts.values()) >= 0.0
    assert sum(times.durations.counts) == times.steps
