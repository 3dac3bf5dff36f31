"""A long prompt beside streams: every stream goes on in every step, and steps stay short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("budget", "threshold"), [(512, 256), (512, 100), (2048, 1024)])
def test_beside_a_prompt_of_20000_tokens_all_streams_flow_and_no_step_is_longer_than_the_threshold(
    simulate: type[Simulation], budget: int, threshold: int, depth: int
) -> None:
    sim = simulate(num_pages=1600, budget=budget, max_num_seqs=16, long_prefill_token_threshold=threshold, depth=depth)
    streams = [f"s{number}" for number in range(8)]
    for name in streams:
        sim.add(name, 5, 400)
    while not all(sim.outputs.values()):
        sim.step()
    sim.add("long", 20_000, 2)
    steps = 0
    while not sim.outputs["long"]:
        batch = sim.step()
        tokens = {share.request_id: share.num_tokens for share in batch.requests}
        assert [tokens[name] for name in streams] == [1] * 8
        assert batch.num_tokens <= threshold + 8
        steps += 1
    assert steps == -(-20_000 // threshold) + depth
    for name in [*streams, "long"]:
        sim.abort(name)
    while sim.under_way:
        sim.step()
    sim.check_idle()


def test_newcomers_that_are_short_start_within_two_steps_beside_a_long_prompt(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=1600, budget=512, max_num_seqs=64)
    for number in range(8):
        sim.add(f"s{number}", 5, 200)
    sim.step()
    sim.add("long", 20_000, 2)
    for number in range(25):
        name = f"new{number}"
        sim.add(name, 1 + 97 * number % 240, 3)
        sim.step()
        if not sim.requests[name].num_computed_tokens:
            sim.step()
        assert sim.requests[name].num_computed_tokens > 0
        assert not sim.outputs["long"]
    sim.run()


def test_a_newcomer_of_exactly_the_threshold_is_short(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=1600, budget=512, max_num_seqs=64)
    sim.add("stream", 5, 200)
    sim.step()
    sim.add("long", 2000, 2)
    sim.step()
    sim.add("256", 256, 2)
    sim.add("257", 257, 2)
    tokens = {share.request_id: share.num_tokens for share in sim.step().requests}
    assert tokens == {"stream": 1, "long": 256, "256": 255}
    tokens = {share.request_id: share.num_tokens for share in sim.step().requests}
    assert tokens == {"stream": 1, "long": 256, "256": 1}
    sim.run()


def test_a_long_prompt_that_is_alone_gets_the_whole_budget(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=1600, budget=512)
    sim.add("long", 5000, 2)
    chunks = []
    while sim.scheduler.has_work:
        chunks.append(sim.step().num_tokens)
    assert chunks == [512] * 9 + [392, 1]


def test_without_streams_long_prompts_get_what_is_left_over_one_after_the_other(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=1600, budget=512)
    sim.add("a", 1000, 2)
    sim.step()
    sim.add("b", 1000, 2)
    tokens = {share.request_id: share.num_tokens for share in sim.step().requests}
    assert tokens == {"a": 488, "b": 24}
    sim.run()


def test_prompts_that_are_long_and_answers_of_one_token_fill_every_step(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=1600, budget=512)
    for number in range(6):
        sim.add(f"r{number}", 300, 1)
    steps = []
    while sim.scheduler.has_work:
        steps.append(sim.step().num_tokens)
    assert steps == [512, 512, 512, 264]


def test_a_prompt_found_in_the_cache_but_for_a_few_tokens_is_short(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=400, budget=64, max_num_seqs=8)
    sim.add("cold", [1] * 1000, 1)
    sim.run()
    sim.add("stream", 5, 60)
    sim.step()
    sim.add("long", 1000, 1)
    sim.step()
    sim.add("warm", [1] * 1000, 1)
    sim.step()
    assert sim.requests["warm"].num_cached_tokens == 992
    assert sim.reasons["warm"].value == "length"
    sim.run()
