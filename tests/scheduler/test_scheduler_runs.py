"""Long random runs over several group plans: every request ends once, with its own tokens, and no page is lost.

The simulation checks budget, order, releases, states and the page audit after every step, and here also what every
step reads.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.refusal import NeverFits
from scheduler.request import FinishReason

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

PLANS: list[list[int | None]] = [[None], [9], [None, 9], [7, 7, None, 7, 30], [8, 8, 8, None]]


def add_random(sim: Simulation, name: str, random_source: random.Random, longest: int) -> bool:
    """Add a request, often with a prefix or a whole prompt that others have; False when it never fits."""
    shared = random_source.choice([0, 0, random_source.randrange(longest)])
    prompt = [1] * shared + [random_source.randrange(1, 3) for _ in range(random_source.randrange(1, longest))]
    try:
        sim.add(name, prompt, random_source.randrange(1, longest), eos=[random_source.randrange(1, 1000)])
    except NeverFits:
        return False
    return True


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    windows=st.sampled_from(PLANS),
    num_pages=st.integers(3, 40),
    budget=st.sampled_from([1, 3, 8, 32]),
    max_num_seqs=st.sampled_from([1, 2, 5]),
    caching=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_request_ends_once_with_the_tokens_it_has_alone(
    simulate: type[Simulation],
    windows: list[int | None],
    num_pages: int,
    budget: int,
    max_num_seqs: int,
    caching: bool,
    seed: int,
) -> None:
    """Also proves that the last running request is never preempted: `schedule` would raise."""
    source = random.Random(seed)
    sim = simulate(
        num_pages=num_pages,
        windows=windows,
        budget=budget,
        max_num_seqs=max_num_seqs,
        block_size=4,
        caching=caching,
        read_pages=True,
    )
    accepted = [name for name in map(str, range(12)) if add_random(sim, name, source, 30)]
    while sim.scheduler.has_work:
        sim.step()
        if source.random() < 0.1 and sim.scheduler.has_work:
            sim.abort(source.choice([*sim.running, *sim.waiting]))
        if source.random() < 0.1 and add_random(sim, f"late {sim.steps}", source, 20):
            accepted.append(f"late {sim.steps}")
        assert sim.steps < 20_000
    sim.check_idle()
    assert sim.reasons.keys() == set(accepted)
    counters = sim.scheduler.counters
    started = [request for request in sim.requests.values() if request.num_cached_tokens is not None]
    assert counters.prompt_tokens == sum(request.num_prompt_tokens for request in started)
    assert counters.cached_prompt_tokens == sum(request.num_cached_tokens or 0 for request in started)
    assert counters.generation_tokens == sum(map(len, sim.outputs.values()))
    assert counters.num_preemptions == sum(request.num_preemptions for request in sim.requests.values())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    windows=st.sampled_from(PLANS),
    num_pages=st.integers(1, 30),
    budget=st.integers(1, 20),
    prompt=st.integers(1, 40),
    max_tokens=st.integers(1, 30),
)
def test_a_request_that_passed_the_door_runs_alone_to_its_end_without_preemption(
    simulate: type[Simulation], windows: list[int | None], num_pages: int, budget: int, prompt: int, max_tokens: int
) -> None:
    sim = simulate(num_pages=num_pages, windows=windows, budget=budget, block_size=4, read_pages=True)
    try:
        request = sim.add("a", prompt, max_tokens)
    except NeverFits:
        return
    chunks = 0
    while sim.scheduler.has_work:
        (share,) = sim.step().requests
        assert share.num_tokens <= request.chunk_limit
        chunks += 1
    limit = min(budget, request.chunk_limit)
    assert chunks == -(-prompt // limit) + max_tokens - 1
    assert request.num_preemptions == 0
    sim.check_idle()


def phase_of(sim: Simulation, name: str) -> str:
    request = sim.requests[name]
    if name in sim.reasons:
        return "finished"
    if name in sim.running:
        return "decode" if request.num_output_tokens else "prefill"
    return "preempted" if request.num_preemptions else "waiting"


def test_h05_a_thousand_requests_aborted_in_random_phases_leave_every_page_free(simulate: type[Simulation]) -> None:
    source = random.Random(5)
    sim = simulate(num_pages=16, budget=24, max_num_seqs=8)
    phases = dict.fromkeys(["waiting", "prefill", "decode", "preempted", "finished"], 0)
    aborted = 0
    while len(sim.requests) < 1000 or sim.scheduler.has_work:
        for _ in range(min(source.randrange(6), 1000 - len(sim.requests), 12 - len(sim.waiting))):
            sim.add(f"r{len(sim.requests)}", source.choice([5, 50]), source.choice([20, 60]))
        batch = sim.schedule()
        if batch:
            sim.finish_step()
        wanted = source.choice([*phases, *["preempted"] * 5, *[None] * 10])
        names = [name for name in list(sim.requests)[-40:] if phase_of(sim, name) == wanted]
        if wanted is not None and names:
            phases[wanted] += 1
            aborted += wanted != "finished"
            assert sim.abort(source.choice(names)) is (wanted != "finished")
    sim.check_idle()
    assert len(sim.reasons) == 1000
    assert sum(reason is FinishReason.ABORT for reason in sim.reasons.values()) == aborted
    assert min(phases.values()) > 10, phases
    sim.add("next", 1, 1)
    sim.run(limit=1)


@pytest.mark.parametrize("windows", PLANS, ids=str)
def test_hundreds_of_requests_through_a_pool_at_a_fifth_of_their_peak(
    simulate: type[Simulation], windows: list[int | None]
) -> None:
    source = random.Random(8)
    columns = sum(group.pages_per_block for group in simulate(num_pages=1, windows=windows).blocks.groups)
    sim = simulate(num_pages=12 * columns, windows=windows, budget=24, max_num_seqs=6, block_size=4)
    for i in range(150):
        sim.add(str(i), source.randrange(1, 25), source.randrange(1, 20))
    sim.run()
    assert sim.scheduler.counters.num_preemptions < 150
    assert all(request.num_preemptions <= 8 for request in sim.requests.values())
