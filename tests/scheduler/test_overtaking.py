"""Small requests may start before a large one that wants more pages than there are, but only so many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.request import WaitReason

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


@pytest.mark.parametrize(("max_overtakes", "overtakes"), [(16, 16), (3, 3), (0, 0), (100, 20)])
def test_f14_small_requests_run_beside_a_head_that_wants_forty_pages_and_it_starts_after_a_few(
    simulate: type[Simulation], max_overtakes: int, overtakes: int
) -> None:
    sim = simulate(num_pages=64, budget=1024, max_num_seqs=4, max_overtakes=max_overtakes)
    sim.add("runs", 30 * 16, 40)
    sim.step()
    sim.add("head", 40 * 16, 3)
    for number in range(20):
        sim.add(f"small{number}", 10, 2)
    started = []
    while sim.scheduler.has_work:
        started += [share.request_id for share in sim.step().requests if share.admitted]
    assert started.index("head") == overtakes
    assert sim.scheduler.counters.overtakes == overtakes
    assert started == [*(f"small{number}" for number in range(overtakes)), "head"] + [
        f"small{number}" for number in range(overtakes, 20)
    ]


def test_f14_the_pages_of_those_that_end_are_the_heads_once_it_may_not_be_passed(simulate: type[Simulation]) -> None:
    """Without the bound, an endless stream of small requests would keep so many pages from ever being free.

    Ten of them, of four pages each, fit at once: the twenty that start before the head take two rounds of 40 steps, and
    the stragglers of the second one more.
    """
    sim = simulate(num_pages=42, budget=64, max_num_seqs=16, max_overtakes=16)
    for number in range(4):
        sim.add(f"small{number}", 17, 40)
    sim.add("head", 39 * 16, 3)
    steps = 0
    while "head" not in sim.running:
        sim.add(f"new{steps}", 17, 40)
        sim.step()
        steps += 1
    assert sim.scheduler.counters.overtakes == 16
    assert steps <= 3 * 40
    sim.run()


def test_who_waits_for_pages_does_not_count_those_that_were_before_it(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, budget=128, watermark_tokens=0)
    sim.add("a", 30, 50)
    sim.add("b", 30, 50)
    while sim.scheduler.counters.num_preemptions < 1:
        sim.step()
    sim.add("late", 100, 2)
    while sim.scheduler.has_work:
        sim.step()
        assert sim.requests["late"].num_overtakers == 0
    assert sim.scheduler.counters.overtakes == 0


def test_the_count_starts_anew_when_a_request_has_run(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, budget=128)
    sim.add("a", 60, 9)
    sim.step()
    head = sim.add("head", 100, 2)
    sim.add("small", 1, 1)
    sim.step()
    assert head.num_overtakers == 1
    while "head" not in sim.running:
        sim.step()
    assert head.num_overtakers == 0
    sim.run()


def test_a_family_without_places_may_be_passed_by_single_requests_but_not_for_ever(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=64, max_num_seqs=4, max_overtakes=5)
    sim.add("runs", 5, 200)
    sim.step()
    sim.add("family", 5, 3, num_samples=4)
    names = []
    while "family" not in sim.running:
        name = f"new{len(names)}"
        sim.add(name, 3, 2)
        names.append(name)
        sim.step()
        assert len(names) < 300
    assert sim.scheduler.counters.overtakes == 5
    assert sum(bool(sim.outputs[name]) for name in names) == 5
    sim.run()


def test_only_so_many_that_cannot_start_are_looked_at(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, budget=512)
    sim.add("runs", 200, 9)
    sim.step()
    for number in range(20):
        sim.add(f"large{number}", 250, 2)
    sim.add("small", 1, 1)
    sim.step()
    assert "small" in sim.waiting
    reasons = sim.scheduler.planner.wait_reasons()
    assert reasons == {WaitReason.PAGES: 16, WaitReason.BEHIND: 5}
    sim.run()
