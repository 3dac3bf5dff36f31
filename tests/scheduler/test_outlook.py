"""What a scheduler says about the time to come, from the requests it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


def starts(sim: Simulation, limit: int = 100) -> list[float]:
    scheduler = sim.scheduler
    return scheduler.outlook.starts(scheduler.running, scheduler.waiting, limit)


def busy(simulate: type[Simulation]) -> Simulation:
    """One runs with 20 tokens to draw; three wait for its place. A step takes 0.1 s, whatever its tokens."""
    sim = simulate(num_pages=64, budget=64, max_num_seqs=1)
    sim.add("runs", 10, 21)
    for name in "abc":
        sim.add(name, 32, 10)
    sim.step()
    sim.scheduler.outlook.step_time.observe(1, 0.1)
    sim.scheduler.outlook.step_time.observe(64, 0.1)
    return sim


def test_requests_start_when_those_before_them_have_ended(simulate: type[Simulation]) -> None:
    sim = busy(simulate)
    step = sim.scheduler.outlook.step_time
    decode = step.seconds(1)
    prefill = step.seconds(64) / 64 * 32
    first = 20 * decode
    assert starts(sim) == pytest.approx([first, first + prefill + 10 * decode, first + 2 * (prefill + 10 * decode)])
    assert starts(sim, 1) == pytest.approx([first])
    assert starts(sim, 0) == []


def test_estimates_come_true_where_answers_are_as_long_as_they_may_be(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=64, max_num_seqs=2)
    for number in range(6):
        sim.add(f"r{number}", 10 + number, 20 + 7 * number)
    sim.scheduler.outlook.step_time.observe(1, 0.1)
    sim.scheduler.outlook.step_time.observe(64, 0.2)
    step_time = sim.scheduler.outlook.step_time
    sim.step()
    told = dict(zip(sim.waiting, starts(sim), strict=True))
    while sim.scheduler.has_work:
        batch = sim.schedule()
        sim.now += step_time.seconds(batch.num_tokens)
        sim.finish_step()
    for name, seconds in told.items():
        assert sim.requests[name].started == pytest.approx(seconds, rel=0.1, abs=0.3)


def test_answers_that_ended_early_shorten_the_estimates(simulate: type[Simulation]) -> None:
    sim = busy(simulate)
    before = starts(sim)
    sim.scheduler.outlook.answer_length.observe(2, 10)
    after = starts(sim)
    assert after[0] == pytest.approx(before[0] * (21 * 0.2 - 1) / 20)
    assert after[2] < before[2]


def test_a_request_without_pages_waits_for_those_of_who_runs(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, budget=256)
    sim.add("runs", 100, 10)
    sim.step()
    sim.scheduler.outlook.step_time.observe(1, 0.5)
    sim.add("large", 60, 2)
    sim.add("small", 1, 1)
    sim.schedule()
    assert sim.waiting == ["large"]
    sim.finish_step()
    # it has drawn 2 of 10 tokens, and small has ended
    assert starts(sim) == pytest.approx([8 * 0.5])
    sim.run()


@pytest.mark.parametrize(
    ("starts_", "num_before", "seconds"),
    [
        ([], 0, 1.0),
        ([], 50, 1.0),
        ([0.2, 5.0], 0, 1.0),
        ([0.2, 5.0], 1, 5.0),
        ([0.2, 5.0], 3, 10.0),  # two more start in five seconds more
        ([0.2, 5.0], 1000, 120.0),
        ([500.0], 0, 120.0),
    ],
)
def test_retry_after_is_when_so_many_have_left_the_queue(
    simulate: type[Simulation], starts_: list[float], num_before: int, seconds: float
) -> None:
    outlook = simulate(num_pages=4).scheduler.outlook
    assert outlook.retry_after(starts_, num_before) == pytest.approx(seconds)


def test_an_outlook_changes_nothing(simulate: type[Simulation]) -> None:
    sim = busy(simulate)
    before = (sim.running, sim.waiting, sim.blocks.usage(), sim.scheduler.waiting.num_tokens)
    assert starts(sim) == starts(sim)
    assert (sim.running, sim.waiting, sim.blocks.usage(), sim.scheduler.waiting.num_tokens) == before
    sim.run()
