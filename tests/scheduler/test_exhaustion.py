"""Exhaustion: the step after which no page is left, as counting step by step finds it."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.exhaustion import Growth, steps_until_exhausted

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

BLOCK_SIZE = 4


def growth(slack: int, steps: int, *, growing_steps: int | None = None, pages: int = 1, held: int = 0) -> Growth:
    return Growth(
        slack=slack,
        pages_per_block=pages,
        growing_steps=steps if growing_steps is None else growing_steps,
        steps=steps,
        held_pages=held,
    )


def counted(growths: list[Growth], available: int) -> int | None:
    """Step by step."""
    if growths and available < 1:
        return 0
    taken = [0] * len(growths)
    for step in range(1, max((one.steps for one in growths), default=0) + 1):
        for number, one in enumerate(growths):
            beyond = min(step, one.growing_steps) - one.slack
            if step <= one.steps and beyond > 0:
                taken[number] = one.pages_per_block * -(-beyond // BLOCK_SIZE)
            elif step > one.steps:
                taken[number] = -one.held_pages
        if sum(taken) >= available:
            return step
    return None


@pytest.mark.parametrize(
    ("growths", "available", "steps"),
    [
        ([], 0, None),
        ([growth(0, 10)], 0, 0),
        ([growth(0, 10)], 1, 1),  # its block is full
        ([growth(3, 10)], 1, 4),
        ([growth(3, 10)], 2, 8),
        ([growth(3, 10)], 3, None),  # it would be step 12
        ([growth(0, 10, pages=5)], 6, 5),
        ([growth(0, 100), growth(2, 100)], 5, 9),  # at 1, 3, 5, 7 and 9
        ([growth(0, 4, held=3), growth(0, 100)], 5, 29),  # 1 + 3 come back after step 4, so that 8 are to be had
        ([growth(0, 100, growing_steps=8)], 3, None),  # a window is full
        ([growth(0, 100, growing_steps=8), growth(0, 100)], 5, 9),
    ],
)
def test_exact_steps(growths: list[Growth], available: int, steps: int | None) -> None:
    assert counted(growths, available) == steps
    assert steps_until_exhausted(growths, available, BLOCK_SIZE) == steps


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), available=st.integers(0, 60), count=st.integers(0, 8))
def test_any_growth_is_exhausted_when_counting_says_so(seed: int, available: int, count: int) -> None:
    source = random.Random(seed)
    growths = []
    for _ in range(count):
        steps = source.randrange(1, 40)
        growing = source.choice([steps, source.randrange(steps + 1)])
        growths.append(
            growth(
                source.randrange(BLOCK_SIZE),
                steps,
                growing_steps=growing,
                pages=source.choice([1, 2, 5]),
                held=source.choice([0, source.randrange(10)]),
            )
        )
    assert steps_until_exhausted(growths, available, BLOCK_SIZE) == counted(growths, available)


@pytest.mark.alone
def test_a_thousand_sequences_cost_milliseconds() -> None:
    source = random.Random(1)
    growths = [growth(source.randrange(16), source.randrange(1, 4000), held=50) for _ in range(1024)]
    before = time.thread_time()
    assert steps_until_exhausted(growths, 10**6, 16) is None
    assert time.thread_time() - before < 0.2


def test_running_requests_take_every_page_when_they_were_said_to(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=12, budget=64, watermark_tokens=0)
    sim.add("a", 20, 150)
    sim.add("b", 5, 150)
    sim.step()
    sim.scheduler.outlook.step_time.observe(2, 0.25)
    sim.scheduler.outlook.step_time.observe(2, 0.25)
    told = sim.scheduler.outlook.exhaustion_seconds(sim.scheduler.running)
    steps = 0
    while sim.blocks.available_pages:
        sim.step()
        steps += 1
    assert told == pytest.approx(0.25 * steps)
    assert sim.scheduler.outlook.exhaustion_seconds(sim.scheduler.running) == 0.0


def test_prompts_that_are_still_computed_have_taken_their_pages(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=12, budget=16, watermark_tokens=0)
    sim.add("long", 160, 33)
    sim.step()
    for _ in range(2):
        sim.scheduler.outlook.step_time.observe(16, 0.5)
    assert sim.blocks.available_pages == 11
    # 10 pages of prompt, of which the newest token, still to be drawn, is beyond: 1 + 16 steps
    assert sim.scheduler.outlook.exhaustion_seconds(sim.scheduler.running) == pytest.approx(
        18 * sim.scheduler.outlook.step_time.seconds(1)
    )


@pytest.mark.parametrize(("max_tokens", "is_foreseen"), [(120, False), (300, True)])
def test_requests_that_end_before_exhaust_nothing(
    simulate: type[Simulation], max_tokens: int, is_foreseen: bool
) -> None:
    sim = simulate(num_pages=20, budget=64, watermark_tokens=0)
    assert sim.scheduler.outlook.exhaustion_seconds(sim.scheduler.running) is None
    sim.add("a", 16, max_tokens)
    sim.add("b", 16, max_tokens)
    sim.step()
    assert sim.scheduler.outlook.exhaustion_seconds(sim.scheduler.running) is None, "no step was seen"
    sim.scheduler.outlook.step_time.observe(2, 0.5)
    told = sim.scheduler.outlook.exhaustion_seconds(sim.scheduler.running)
    assert (told is not None) == is_foreseen


def test_a_window_that_is_full_exhausts_nothing(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=12, budget=64, windows=[32], watermark_tokens=0)
    sim.add("a", 60, 2000)
    sim.step()
    sim.scheduler.outlook.step_time.observe(1, 0.5)
    assert sim.scheduler.outlook.exhaustion_seconds(sim.scheduler.running) is None


def test_what_the_next_to_start_could_not_get_is_told_while_pages_are_why(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, budget=128, max_num_seqs=2, watermark_tokens=0)
    sim.add("a", 60, 40)
    sim.step()
    assert sim.scheduler.planner.wanted_pages == 0
    sim.add("b", 100, 4)
    sim.step()
    wanted = sim.scheduler.explain("b").wanted_pages
    assert sim.scheduler.planner.wanted_pages == wanted > sim.blocks.available_pages
    sim.add("small", 4, 9)
    sim.step()
    sim.step()
    assert sim.running == ["a", "small"], "now as many run as may"
    assert sim.requests["b"].wanted_pages > 0
    assert sim.scheduler.planner.wanted_pages == 0
