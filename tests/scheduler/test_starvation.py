"""Nobody waits for ever: a prompt of 400 tokens beside an endless stream of short ones, under every policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from scheduler.policy import FairShare, FirstComeFirstServed, Policy, PriorityWithAging

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

POLICIES = [
    pytest.param(FirstComeFirstServed, id="fcfs"),
    pytest.param(lambda: PriorityWithAging(10.0), id="priority"),
    pytest.param(lambda: FairShare({}), id="fair"),
]


def seconds_until_it_has_run(
    sim: Simulation, name: str, arrivals: Callable[[], None], seconds_per_step: float = 0.1
) -> float:
    """Steps of so many seconds, with ``arrivals`` before each, until ``name`` has ended."""
    started = sim.now
    longest_wait = 0.0
    for _ in range(3000):
        if name in sim.reasons:
            break
        arrivals()
        sim.step()
        sim.now += seconds_per_step
        longest_wait = max(longest_wait, sim.scheduler.longest_wait_seconds)
    assert name in sim.reasons
    assert longest_wait <= sim.now - started
    return sim.now - started


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", POLICIES)
def test_f15_a_prompt_of_400_tokens_starts_beside_a_steady_stream_of_short_ones(
    simulate: type[Simulation], policy: Callable[[], Policy], depth: int
) -> None:
    """More short ones arrive than the server can answer, and they hold most pages. It needs 26 of 32.

    All short ones before it are drained and at most 16 pass it: each has at most 8 + 8 tokens, four run at once.
    """
    sim = simulate(num_pages=32, budget=64, max_num_seqs=4, policy=policy(), depth=depth)

    def arrivals() -> None:
        if len(sim.waiting) < 30:
            sim.add(f"short{len(sim.requests)}", 8, 8, tenant="others")

    for _ in range(50):
        arrivals()
        sim.step()
    sim.add("long", 400, 4, tenant="me")
    before = len(sim.waiting)
    assert before > 5
    # (before + overtakes) / 4 rounds of 9 steps, its prompt in 64 - 4 tokens a step, its answer
    most = ((before + 16) / 4 + 1) * (9 + depth) + 400 / 28 + 4 + 8
    assert seconds_until_it_has_run(sim, "long", arrivals) <= 0.1 * most


def test_f21_a_low_priority_is_served_when_it_has_aged_beside_a_stream_of_high_ones(
    simulate: type[Simulation],
) -> None:
    """Two levels at 10 seconds: what comes more than 20 seconds later goes behind it."""
    sim = simulate(num_pages=32, budget=64, max_num_seqs=4, policy=PriorityWithAging(10.0))

    def arrivals() -> None:
        if len(sim.waiting) < 30:
            sim.add(f"high{len(sim.requests)}", 8, 8, priority=-1)

    for _ in range(50):
        arrivals()
        sim.step()
    sim.add("low", 400, 4, priority=1)
    seconds = seconds_until_it_has_run(sim, "low", arrivals)
    # those that came within 20 seconds may go first, and are at most as many as can wait
    assert 20.0 <= seconds <= 20.0 + 0.1 * ((30 + 16) / 4 * 9 + 400 / 28 + 12)
    assert sim.requests["low"].started >= 20.0


def test_f21_priorities_order_admission(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=64, max_num_seqs=2, policy=PriorityWithAging(10.0))
    for number in range(30):
        sim.add(f"r{number}", 5, 4)
    sim.step()
    sim.add("urgent", 5, 4, priority=-3)
    while "urgent" not in sim.running:
        sim.step()
    assert list(sim.reasons) == ["r0", "r1"]
    sim.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_f16_cold_requests_start_in_time_beside_ninety_five_per_cent_that_share_a_hot_prefix(
    simulate: type[Simulation], policy: Callable[[], Policy]
) -> None:
    sim = simulate(num_pages=40, budget=64, max_num_seqs=8, policy=policy())
    hot = [1] * 160
    waits = {}
    for number in range(600):
        cold = number % 20 == 10
        if len(sim.waiting) < 20 or cold:
            name = f"{'cold' if cold else 'hot'}{number}"
            sim.add(name, 170 if cold else [*hot, number % 1000, 5], 6, tenant="cold" if cold else "hot")
        sim.step()
        sim.now += 0.1
    for name, request in sim.requests.items():
        if request.started is not None:
            waits[name] = request.started - request.arrived
    worst_hot = max(wait for name, wait in waits.items() if name.startswith("hot"))
    worst_cold = max(wait for name, wait in waits.items() if name.startswith("cold"))
    assert sum(name.startswith("cold") for name in waits) >= 25
    # it waits as long as the others, and for the sixteen that may pass it
    assert worst_cold <= worst_hot + 16 * 7 * 0.1
    sim.run()


def test_a_stream_of_new_tenants_does_not_keep_an_old_one_waiting(simulate: type[Simulation]) -> None:
    """Each new tenant starts at the least debt of all: no later than who waits, but not before either."""
    sim = simulate(num_pages=16, budget=32, max_num_seqs=1, policy=FairShare({}))
    sim.add("first", 5, 4, tenant="zoe")
    sim.step()
    sim.add("second", 5, 4, tenant="yves")
    for number in range(60):
        sim.add(f"new{number}", 5, 4, tenant=f"a{number:04}")
        sim.step()
    assert "second" in sim.reasons
    assert list(sim.reasons)[:2] == ["first", "second"]
    sim.run()
