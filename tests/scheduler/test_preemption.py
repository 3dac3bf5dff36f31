"""Preemption: who gives way, what it costs, and that no answer changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from block_manager.groups import plan_groups
from block_manager.manager import BlockManager
from scheduler.policy import FairShare, PriorityWithAging
from scheduler.preemption import preempt
from scheduler.preemption_record import Preemption, PreemptionCause, PreemptionKind
from scheduler.request import FinishReason, Request

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


def step_until_preempted(sim: Simulation, count: int = 1) -> None:
    while sim.scheduler.counters.num_preemptions < count:
        sim.step()


def test_the_newest_gives_way_and_goes_to_the_front_with_its_tokens(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=9, budget=96)
    for name in ("a", "b", "c"):
        sim.add(name, 16 * 2, 40)
    sim.add("d", 4, 1)
    step_until_preempted(sim)
    assert sim.running == ["a", "b"]
    assert sim.waiting == ["c", "d"]
    victim = sim.requests["c"]
    assert victim.num_tokens > 32
    assert (victim.num_computed_tokens, victim.num_preemptions) == (0, 1)
    sim.run()
    assert {name: len(output) for name, output in sim.outputs.items()} == {"a": 40, "b": 40, "c": 40, "d": 1}


def test_two_victims_of_one_step_wait_in_their_old_order(simulate: type[Simulation]) -> None:
    """One long chunk of the oldest takes the pages of both requests that started after it."""
    sim = simulate(num_pages=8, budget=16, windows=[None])
    sim.add("a", 16, 113)
    sim.add("b", 1, 90)
    sim.add("c", 1, 90)
    orders = []
    while sim.scheduler.has_work:
        before = sim.scheduler.counters.num_preemptions
        sim.step()
        if sim.scheduler.counters.num_preemptions > before:
            orders.append(sim.waiting)
    assert orders
    assert all(order == sorted(order) for order in orders)
    assert len(sim.outputs["a"]) == 113


def test_a_preempted_request_is_released_once_and_admitted_anew(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=6, budget=64)
    sim.add("a", 30, 40)
    sim.add("b", 30, 40)
    batches = []
    while sim.scheduler.has_work:
        batches.append(sim.step())
    released = [name for batch in batches for name in batch.released]
    admitted = [share.request_id for batch in batches for share in batch.requests if share.admitted]
    assert sim.requests["b"].num_preemptions == 1
    assert released == ["b", "a"]
    assert admitted == ["a", "b", "b"]


def test_f04_two_requests_that_share_ten_pages_both_get_all_their_tokens(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=10, budget=64, read_pages=True)
    sim.add("a", 5, 100)
    sim.add("b", 5, 100)
    sim.run()
    for name in ("a", "b"):
        assert sim.outputs[name] == sim.undisturbed(name, 100)
        assert sim.reasons[name] is FinishReason.LENGTH
    counters = sim.scheduler.counters
    assert counters.num_preemptions >= 1
    assert counters.generation_tokens == 200
    assert counters.prompt_tokens == 10


def test_a_preempted_request_finds_its_own_pages_again(simulate: type[Simulation]) -> None:
    """Both hold five of ten pages when a wants a sixth and soon a seventh; b has 80 tokens in five full pages."""
    sim = simulate(num_pages=10, budget=512, read_pages=True)
    sim.add("a", 5, 100)
    sim.add("b", 5, 100)
    step_until_preempted(sim)
    assert sim.requests["b"].high_water == 80
    batch = sim.step()
    while not batch.requests[-1].admitted:
        batch = sim.step()
    (again,) = batch.requests
    # a evicted the tail of b: two of its five pages
    assert (again.request_id, again.num_computed_tokens, again.num_tokens) == ("b", 48, 33)
    sim.run()
    counters = sim.scheduler.counters
    assert counters.recomputed_tokens == 80 - 48
    assert counters.cached_prompt_tokens == 0
    assert sim.requests["b"].num_cached_tokens == 0


@pytest.mark.parametrize("budget", [20, 512])
def test_recomputed_tokens_are_what_was_computed_before_and_not_found(simulate: type[Simulation], budget: int) -> None:
    """Without a prefix cache, all of the victim is computed again, in one chunk or several."""
    sim = simulate(num_pages=6, budget=budget, caching=False, read_pages=True)
    sim.add("a", 30, 40)
    sim.add("b", 30, 40)
    step_until_preempted(sim)
    victim = sim.requests["b"]
    computed = victim.high_water
    assert computed == victim.num_tokens - 1
    assert computed > 40
    sim.run()
    assert sim.scheduler.counters.recomputed_tokens == computed
    assert sim.scheduler.counters.prompt_tokens == 60


def test_f07_a_victim_returns_only_when_all_of_it_fits(simulate: type[Simulation]) -> None:
    """A long prompt, computed in chunks of 32, is not resumed into half of its pages only to lose them again."""
    sim = simulate(num_pages=20, budget=32)
    sim.add("old", 100, 150)
    sim.add("long", 160, 20)
    sim.run()
    assert sim.requests["long"].num_preemptions <= 2
    assert sim.scheduler.counters.recomputed_tokens <= 2 * 180


def test_f08_recomputation_stays_small_when_the_pool_is_a_fraction_of_the_peak(simulate: type[Simulation]) -> None:
    for num_pages in (16, 32, 64):  # 8 requests of up to 10 pages would like 80
        sim = simulate(num_pages=num_pages, budget=64, max_num_seqs=8)
        for i in range(60):
            sim.add(f"r{i}", 8 + i % 40, 20 + 7 * i % 90)
        sim.run()
        counters = sim.scheduler.counters
        useful = counters.prompt_tokens - counters.cached_prompt_tokens + counters.generation_tokens
        assert counters.recomputed_tokens < 0.25 * useful, num_pages


def test_f12_four_generations_that_exceed_the_pool_together_all_end(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16, budget=64)
    for name in "abcd":
        sim.add(name, 20, 200)
    sim.run()
    assert {name: len(output) for name, output in sim.outputs.items()} == dict.fromkeys("abcd", 200)
    assert set(sim.reasons.values()) == {FinishReason.LENGTH}
    assert all(request.num_preemptions <= 4 for request in sim.requests.values())


@pytest.mark.parametrize("phase", range(0, 60, 3))
def test_an_abort_in_any_phase_of_a_preempting_run_leaves_the_other_untouched(
    simulate: type[Simulation], phase: int
) -> None:
    sim = simulate(num_pages=6, budget=20, read_pages=True)
    sim.add("a", 30, 40)
    sim.add("b", 30, 40)
    sim.add("c", 3, 5)
    for _ in range(phase):
        sim.step()
    expected = "b" not in sim.reasons
    assert sim.abort("b") == expected
    if sim.scheduler.has_work:
        sim.run()
    sim.check_idle()
    assert len(sim.outputs["a"]) == 40
    assert len(sim.outputs["c"]) == 5


# ---- how, and what is remembered


@pytest.mark.parametrize(
    ("seconds_per_page", "seconds_per_token", "host_pages", "kind"),
    [
        # the victim has 40 computed tokens in 3 pages: 6 moves, or 40 tokens
        (1.0, 0.16, 10, PreemptionKind.SWAP),
        (1.0, 0.14, 10, PreemptionKind.RECOMPUTE),
        (1.0, 0.15, 10, PreemptionKind.RECOMPUTE),  # not worse: the pages stay findable
        (1.0, 0.16, 2, PreemptionKind.RECOMPUTE),  # no room
        (1.0, 0.16, 3, PreemptionKind.SWAP),
        (0.0, 0.01, 10, PreemptionKind.SWAP),
    ],
)
def test_pages_are_swapped_where_that_is_faster_than_to_compute_them_again(
    seconds_per_page: float,
    seconds_per_token: float,
    host_pages: int,
    kind: PreemptionKind,
    make_request: Callable[..., Request],
) -> None:
    blocks = BlockManager(plan_groups([None]), 5, 16, num_host_pages=host_pages)
    victim = make_request("v", 41)
    assert blocks.admit("v", blocks.match_prefix(victim.block_hashes, 41), 41)
    blocks.commit("v", 40, victim.block_hashes)
    victim.restart(40)
    record = preempt(
        blocks,
        victim,
        make_request("r"),
        PreemptionCause.PREFILL,
        now=7.5,
        seconds_per_token=seconds_per_token,
        seconds_per_page=seconds_per_page,
    )
    swapped = kind is PreemptionKind.SWAP
    assert record == Preemption(
        at=7.5,
        victim="v",
        requester="r",
        kind=kind,
        cause=PreemptionCause.PREFILL,
        pages_freed=3,
        tokens_to_recompute=0 if swapped else 40,
    )
    assert victim.ledger.preemptions == [record]
    assert victim.num_preemptions == 1
    assert victim.num_computed_tokens == victim.num_scheduled_tokens == (40 if swapped else 0)
    assert (victim.ledger.held_pages, victim.ledger.peak_pages) == (0, 3)
    assert (list(blocks.swapped), blocks.usage().held) == (["v"] if swapped else [], 0)
    assert blocks.audit() == []


def test_f21_the_lowest_priority_gives_way_however_old_it_is(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=9, budget=96, policy=PriorityWithAging(aging=10.0))
    sim.add("low", 32, 40, priority=1)
    sim.add("b", 32, 40)
    sim.add("high", 32, 40, priority=-1)
    step_until_preempted(sim)
    assert (sim.running, sim.waiting) == (["high", "b"], ["low"])
    (record,) = sim.scheduler.planner.preemptions
    assert (record.victim, record.requester, record.cause) == ("low", "high", PreemptionCause.DECODE)
    sim.run()
    assert [len(sim.outputs[name]) for name in ("low", "b", "high")] == [40, 40, 40]


def test_the_tenant_that_has_had_most_gives_way(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=9, budget=96, policy=FairShare({"a": 0.5}))
    for name in ("a", "b", "c"):
        sim.add(name, 32, 40, tenant=name)
    step_until_preempted(sim)
    assert sim.waiting == ["a"]
    sim.run()


def test_preemptions_are_counted_by_kind_and_cause(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, budget=16, num_host_pages=8, seconds_per_page=0.0, watermark_tokens=0)
    sim.add("a", 100, 10)
    sim.step()
    sim.step()
    sim.add("b", 16, 40)
    sim.run()
    counters = sim.scheduler.counters
    assert counters.preemptions.keys() <= {
        (PreemptionKind.SWAP, PreemptionCause.PREFILL),
        (PreemptionKind.SWAP, PreemptionCause.DECODE),
    }
    assert counters.num_preemptions == sum(counters.preemptions.values()) == len(sim.scheduler.planner.preemptions)
    assert counters.recomputed_tokens == 0
