"""Requests for the prompt's sake: such that draw nothing, and such whose every prompt position is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from block_manager.prefix_index import MissReason
from scheduler.request import FinishReason


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prompt", [1, 16, 70])
def test_max_tokens_0_computes_the_prompt_and_ends_by_length(simulate: Callable, prompt: int, depth: int) -> None:
    sim = simulate(num_pages=40, depth=depth)
    sim.add("a", prompt, 0)
    sim.add("b", 20, 5)
    sim.run()
    assert (sim.outputs["a"], sim.reasons["a"]) == ([], FinishReason.LENGTH)
    assert sim.outputs["b"] == sim.undisturbed("b", 5)
    assert sim.requests["a"].num_computed_tokens == prompt
    assert sim.scheduler.counters.generation_tokens == 5
    assert sim.scheduler.counters.prompt_tokens == prompt + 20


def test_samples_of_a_prompt_that_draw_nothing_end_with_it(simulate: Callable) -> None:
    sim = simulate(num_pages=40)
    sim.add("a", 70, 0, num_samples=3)
    sim.run()
    assert set(sim.reasons) == {"a", "a/1", "a/2"}
    assert set(sim.reasons.values()) == {FinishReason.LENGTH}
    assert sim.scheduler.counters.prompt_tokens == 70
    assert sim.steps == 3


def test_a_prompt_that_draws_nothing_may_take_every_page(simulate: Callable) -> None:
    sim = simulate(num_pages=4)  # one of them is the null page
    sim.add("a", sim.blocks.pool.num_pages * 16, 0)
    sim.run()
    assert sim.reasons["a"] is FinishReason.LENGTH


def test_a_prompt_that_is_read_is_computed_whole_whatever_is_cached(simulate: Callable) -> None:
    sim = simulate(num_pages=40)
    tokens = list(range(1, 71))
    sim.add("first", tokens, 2)
    sim.run()
    sim.add("read", tokens, 2, reads_prompt=True)
    sim.run()
    sim.add("plain", tokens, 2)
    sim.run()
    assert [sim.requests[name].num_cached_tokens for name in ("first", "read", "plain")] == [0, 0, 64]
    assert sim.scheduler.counters.missed_tokens[MissReason.DISABLED] == 70


def test_after_a_preemption_a_prompt_that_is_read_finds_what_it_had_computed_itself(simulate: Callable) -> None:
    sim = simulate(num_pages=40, budget=40)
    tokens = list(range(1, 101))
    sim.add("first", tokens, 1)
    sim.run()
    request = sim.add("read", tokens, 2, reads_prompt=True)
    sim.step()
    assert request.num_computed_tokens == 40
    sim.scheduler.running.remove(request)
    request.restart(0)
    sim.scheduler.waiting.add(request)
    sim.step()
    assert request.num_computed_tokens == 32 + 40  # of 96 that are cached
    assert request.reads_prompt
    sim.run()
    assert not request.reads_prompt
    assert sim.outputs["read"] == sim.undisturbed("read", 2)
