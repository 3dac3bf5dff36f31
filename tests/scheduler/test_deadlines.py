"""Requests that are out of time end, in whatever state they are, at the first step at or after their deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from scheduler.deadlines import Deadlines
from scheduler.refusal import Refusal, RefusalReason
from scheduler.request import FinishReason, Request, RequestStatus

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


def test_deadlines_pass_in_their_order_and_once(make_request: Callable[..., Request]) -> None:
    deadlines = Deadlines()
    deadlines.set(make_request("a", order=1, arrived=100.0, timeout=30.0, queue_timeout=5.0))
    deadlines.set(make_request("b", order=2, arrived=101.0, timeout=4.0))
    deadlines.set(make_request("c", order=3, arrived=101.0))
    assert deadlines.take_passed(104.999) == []
    assert deadlines.take_passed(105.0) == [("a", 1, RefusalReason.QUEUE_TIMEOUT), ("b", 2, RefusalReason.TIMEOUT)]
    assert deadlines.take_passed(105.0) == []
    assert deadlines.take_passed(1e9) == [("a", 1, RefusalReason.TIMEOUT)]


@pytest.mark.parametrize(("now", "ends"), [(1.999, False), (2.0, True), (60.0, True)])
def test_f19_a_request_that_waits_two_seconds_is_refused_and_never_starts(
    simulate: type[Simulation], now: float, ends: bool
) -> None:
    sim = simulate(num_pages=20, max_num_seqs=1)
    sim.add("runs", 5, 20)
    sim.add("waits", 5, 20, queue_timeout=2.0)
    sim.step()
    sim.now = now
    sim.step()
    assert ("waits" in sim.refusals) is ends
    if ends:
        message = "waited for 2 s without a chance to start"
        assert sim.refusals["waits"] == Refusal("waits", RefusalReason.QUEUE_TIMEOUT, message, started=False)
        assert sim.outputs["waits"] == []
        assert sim.scheduler.counters.refusals == {RefusalReason.QUEUE_TIMEOUT: 1}
    sim.run()


def test_a_queue_timeout_does_not_end_what_has_started_even_if_it_waits_again(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=6, budget=64, watermark_tokens=0)
    sim.add("a", 30, 40)
    sim.add("b", 30, 40, queue_timeout=2.0)
    while sim.scheduler.counters.num_preemptions < 1:
        sim.step()
    assert sim.waiting == ["b"]
    sim.now = 100.0
    sim.run()
    assert not sim.refusals
    assert len(sim.outputs["b"]) == 40


@pytest.mark.parametrize("phase", ["waiting", "prefilling", "decoding", "preempted"])
def test_a_timeout_ends_a_request_in_any_state(simulate: type[Simulation], phase: str) -> None:
    sim = simulate(num_pages=6, budget=20, max_num_seqs=2, watermark_tokens=0, num_host_pages=6, seconds_per_page=0.0)
    sim.add("a", 30, 60)
    if phase == "waiting":
        sim.add("second", 5, 90)
    request = sim.add("b", 40, 50, timeout=7.0)
    reached = {
        "waiting": lambda: sim.steps == 3,
        "prefilling": lambda: 0 < request.num_computed_tokens < 40,
        "decoding": lambda: request.num_output_tokens > 2,
        "preempted": lambda: request.num_preemptions == 1 and sim.waiting == ["b"],
    }[phase]
    while not reached():
        sim.step()
    sim.now = 7.0
    sim.step()
    assert request.status is RequestStatus.FINISHED
    started = phase != "waiting"
    assert sim.refusals == {"b": Refusal("b", RefusalReason.TIMEOUT, "the timeout of 7 s is over", started=started)}
    assert "b" not in sim.blocks.sequences
    assert "b" not in sim.blocks.swapped
    sim.run()
    assert len(sim.outputs["a"]) == 60


def test_a_timeout_while_a_step_runs_frees_pages_when_it_is_over(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, depth=1, budget=64)
    sim.add("a", 40, 30, timeout=1.0)
    sim.add("b", 5, 9)
    sim.step()
    sim.now = 1.0
    sim.schedule()
    assert sim.reasons == {"a": FinishReason.ERROR}
    assert "a" in sim.blocks.sequences
    sim.finish_step()
    sim.finish_step()
    assert "a" not in sim.blocks.sequences
    sim.run()


def test_a_pending_sample_is_refused_with_its_parent(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, max_num_seqs=3)
    sim.add("runs", 5, 20)
    sim.add("a", 5, 20, num_samples=3, queue_timeout=2.0)
    sim.step()
    sim.now = 2.0
    sim.step()
    assert list(sim.refusals) == ["a/2", "a/1", "a"]
    assert sim.scheduler.counters.refusals == {RefusalReason.QUEUE_TIMEOUT: 3}
    sim.run()


def test_a_pending_sample_is_not_refused_for_waiting_while_its_prompt_is_computed(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=16)
    sim.add("a", 100, 5, num_samples=2, queue_timeout=2.0)
    sim.step()
    sim.now = 2.0
    sim.run()
    assert not sim.refusals
    assert len(sim.outputs["a"]) == len(sim.outputs["a/1"]) == 5


def test_a_pending_sample_out_of_time_ends_while_its_prompt_is_computed(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=16)
    sim.add("a", 100, 5, num_samples=2, timeout=2.0)
    sim.step()
    sim.now = 2.0
    assert not sim.schedule()
    assert set(sim.refusals) == {"a", "a/1"}
    sim.check_idle()


def test_the_heir_of_a_prompt_that_has_begun_is_not_refused_for_waiting(simulate: type[Simulation]) -> None:
    """The first sample is aborted half way: the second computes the prompt, and is as old as that."""
    sim = simulate(num_pages=20, budget=16)
    sim.add("a", 100, 5, num_samples=2, queue_timeout=2.0)
    sim.step()
    sim.abort("a")
    sim.now = 5.0
    sim.run()
    assert not sim.refusals
    assert len(sim.outputs["a/1"]) == 5
    assert sim.scheduler.counters.prompt_tokens == 100, "counted once, however often it is computed"


def test_a_deadline_of_an_id_that_came_back_is_that_of_the_new_request(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20)
    sim.add("a", 5, 20, timeout=2.0)
    sim.step()
    sim.abort("a")
    sim.now = 1.5
    sim.add("a", 5, 20, timeout=2.0)
    sim.now = 2.5
    sim.step()
    assert not sim.refusals
    sim.now = 3.5
    sim.schedule()
    assert list(sim.refusals) == ["a"]
