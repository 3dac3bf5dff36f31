"""Phases: what of a request's time was queue, prefill and decode, whatever happened to it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.phases import RequestPhases
from scheduler.request import FinishReason

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

Seconds = tuple[float, float | None, float | None]


def phases(sim: Simulation, name: str) -> Seconds:
    return sim.requests[name].ledger.phases.seconds(sim.now)


def timed_step(sim: Simulation, seconds: float = 1.0) -> None:
    """A step that is scheduled now and over in so many seconds."""
    if sim.schedule():
        sim.now += seconds
        sim.finish_step()


def test_a_phase_that_has_not_ended_lasts_up_to_now() -> None:
    phases = RequestPhases(arrived=10.0)
    assert phases.seconds(12.0) == (2.0, None, None)
    phases.start(13.0)
    assert phases.seconds(14.5) == (3.0, 1.5, None)
    phases.start(15.0)
    assert phases.seconds(15.5) == (5.0, 0.5, None)
    phases.first_token = 17.0
    phases.start(18.0)
    assert phases.seconds(21.0) == (5.0, 2.0, 4.0)
    phases.ended = 20.0
    assert phases.seconds(99.0) == (5.0, 2.0, 3.0)


def test_a_request_queues_then_computes_its_prompt_then_draws(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=32, max_num_seqs=1)
    sim.add("first", 16, 3)
    sim.add("second", 80, 5)  # three steps of prompt, the last of which draws
    while sim.scheduler.has_work:
        timed_step(sim)
    assert phases(sim, "first") == (0.0, 1.0, 2.0)
    assert phases(sim, "second") == (3.0, 3.0, 4.0)


def test_a_preemption_before_the_first_token_prolongs_the_queue(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=6, budget=4, watermark_tokens=0)
    sim.add("old", 14, 60)
    for _ in range(4):
        timed_step(sim)
    new = sim.add("new", 64, 2)
    starts = []
    while sim.scheduler.has_work:
        waited = "new" in sim.waiting
        now = sim.now
        timed_step(sim)
        if waited and "new" in sim.running:
            starts.append(now)
    [preemption] = new.ledger.preemptions
    assert starts[0] < preemption.at < starts[1]
    assert new.started == starts[0]
    assert phases(sim, "new")[0] == starts[1] - new.arrived
    assert phases(sim, "new")[1:] == (12.0, 1.0), "a page was cached still; 48 tokens, 4 a step, then one more"


def test_a_preemption_after_the_first_token_is_part_of_decode(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=6, budget=64, watermark_tokens=0)
    sim.add("old", 30, 40)
    sim.add("new", 30, 40)
    while sim.scheduler.has_work:
        timed_step(sim)
    assert sim.requests["new"].num_preemptions == 1
    assert phases(sim, "old") == (0.0, 1.0, 39.0)
    assert phases(sim, "new")[:2] == (0.0, 1.0)
    assert phases(sim, "new")[2] == sim.now - 1.0 > 39.0


def test_samples_of_a_prompt_share_its_phases_until_their_first_token(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=32)
    sim.add("before", 30, 1)
    sim.add("a", 64, 4, num_samples=3)
    while sim.scheduler.has_work:
        timed_step(sim)
    started = sim.requests["a"].started
    assert [phases(sim, name) for name in ("a", "a/1", "a/2")] == [(started, 2.0 + (started == 0), 3.0)] * 3


def test_a_prompt_alone_ends_with_its_prefill(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=32)
    sim.add("a", 64, 0, num_samples=2)
    while sim.scheduler.has_work:
        timed_step(sim)
    assert phases(sim, "a") == (0.0, 2.0, None)
    assert phases(sim, "a/1") == (2.0, None, None), "it never ran: the prompt was computed for both at once"


def test_who_leaves_leaves_in_the_phase_it_was_in(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=32, max_num_seqs=1)
    sim.add("computes", 96, 9)
    sim.add("waits", 16, 9, timeout=4.5)
    timed_step(sim)
    sim.now += 0.5
    sim.abort("computes")
    assert phases(sim, "computes") == (0.0, 1.5, None)
    timed_step(sim)
    assert phases(sim, "waits") == (1.5, 1.0, 0.0)
    sim.add("starves", 16, 9, queue_timeout=3.0)
    timed_step(sim, 4.0)
    timed_step(sim)
    assert sim.reasons["waits"] is FinishReason.ERROR
    assert phases(sim, "waits") == (1.5, 1.0, 4.0)
    assert phases(sim, "starves") == (4.0, None, None)
    assert sim.refusals["starves"].ledger is sim.requests["starves"].ledger


def test_who_takes_over_a_prompt_queues_until_it_starts(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=32)
    sim.add("a", 64, 2, num_samples=2)
    timed_step(sim)
    sim.abort("a")
    sim.now += 1.0
    while sim.scheduler.has_work:
        timed_step(sim)
    assert phases(sim, "a") == (0.0, 1.0, None)
    assert phases(sim, "a/1") == (2.0, 1.0, 1.0), "half of its prompt was found in the cache"


def test_a_refusal_of_the_full_queue_has_no_ledger(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=32, max_num_seqs=1, max_queued_requests=1)
    for name in "abc":
        sim.add(name, 16, 4)
    sim.step()
    assert sim.refusals["c"].ledger is None
