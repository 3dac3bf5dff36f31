"""Aborts: pages come back, exactly once, whatever state a request is in and however many end at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from scheduler.request import FinishReason, RequestStatus

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


def mixed(simulate: type[Simulation], depth: int) -> Simulation:
    """A thousand requests: decoding, prefilling, pending, preempted by both ways, swapped out, waiting."""
    sim = simulate(
        num_pages=700,
        budget=600,
        max_num_seqs=256,
        depth=depth,
        num_host_pages=100,
        seconds_per_page=0.0,
        watermark_tokens=0,
    )
    for number in range(120):
        sim.add(f"stream{number}", 40, 200)
    for _ in range(3):
        sim.step()
    while sim.scheduler.counters.num_preemptions < 40:
        sim.step()
    sim.add("family", 300, 5, num_samples=4)
    for number in range(876):
        sim.add(f"new{number}", 30, 9)
    sim.step()
    return sim


@pytest.mark.alone
@pytest.mark.parametrize("depth", [0, 1])
def test_h05_a_thousand_aborts_in_one_step_give_every_page_back_in_no_time(
    simulate: type[Simulation], depth: int
) -> None:
    sim = mixed(simulate, depth)
    names = list(sim.requests)
    assert len(names) == 1000
    states = {request.status for request in sim.requests.values()}
    assert states == {RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.PENDING}
    assert sim.blocks.swapped
    shown = {request.request_id for request in sim.scheduler.running if not request.is_new_table}
    assert len(shown) > 20
    started = time.thread_time()
    ended = [sim.scheduler.finish(name) for name in names]
    seconds = time.thread_time() - started
    assert seconds < 0.25  # five times the 50 ms that are allowed; 5 ms where this was written
    assert all(request is not None for request in ended)
    assert [sim.scheduler.finish(name) for name in names] == [None] * 1000
    sim.reasons = dict.fromkeys(names, FinishReason.ABORT)
    assert not sim.scheduler.has_work
    assert not sim.blocks.swapped
    for batch in list(sim.under_way):
        sim.under_way.remove(batch)
        assert sim.scheduler.update(batch, {}) == []
    assert sim.blocks.audit() == []
    sim.check_idle()
    sim.add("next", 1, 1)
    assert set(sim.schedule().released) == shown
    sim.finish_step()
    sim.check_idle()


def test_an_abort_of_what_is_not_known_changes_nothing(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8)
    assert sim.scheduler.finish("nobody") is None
    sim.add("a", 4, 2)
    sim.run()
    assert sim.scheduler.finish("a") is None
    assert sim.scheduler.counters.generation_tokens == 2


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
@pytest.mark.parametrize("steps", [0, 1, 3, 5, 8])
def test_samples_of_a_family_can_be_aborted_in_any_order_at_any_time(
    simulate: type[Simulation], order: tuple[int, ...], steps: int, depth: int
) -> None:
    """Two are aborted, one step apart; the third has its own answer all the same."""
    sim = simulate(num_pages=20, budget=16, depth=depth, read_pages=True)
    names = ["a", "a/1", "a/2"]
    sim.add("a", 60, 6, num_samples=3)
    for _ in range(steps):
        sim.step()
    for place in order[:2]:
        sim.abort(names[place])
        if sim.scheduler.has_work:
            sim.step()
    sim.run()
    last = names[order[2]]
    assert sim.reasons[last].value == "length"
    assert sim.outputs[last] == sim.undisturbed(last, 6)
    assert sim.scheduler.counters.prompt_tokens == 60


def test_h08_a_swapped_request_that_is_aborted_leaves_the_host_too(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=6, budget=64, num_host_pages=6, seconds_per_page=0.0, watermark_tokens=0)
    sim.add("a", 30, 40)
    sim.add("b", 30, 40)
    while "b" not in sim.blocks.swapped:
        sim.step()
    assert sim.blocks.host.swapped_pages == 3
    assert sim.abort("b")
    assert sim.blocks.host.swapped_pages == 0
    sim.run()
