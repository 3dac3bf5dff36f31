"""One budget, running before waiting, pages that decide: the scheduler's single steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from block_manager.hashing import BlockHashes
from scheduler.refusal import NeverFits
from scheduler.request import FinishReason

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


def shares(batch: object) -> list[tuple[str, int]]:
    return [(share.request_id, share.num_tokens) for share in batch.requests]  # type: ignore[attr-defined]


# ---- the budget


def test_decodes_and_chunks_share_one_budget(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=32)
    sim.add("a", 20, 9)
    sim.add("b", 30, 9)
    sim.add("c", 40, 9)
    assert shares(sim.step()) == [("a", 20), ("b", 12)]  # nobody streams: long prompts get what is left over
    assert shares(sim.step()) == [("a", 1), ("b", 16)]
    assert shares(sim.step()) == [("a", 1), ("b", 2), ("c", 16)]
    assert shares(sim.step()) == [("a", 1), ("b", 1), ("c", 16)]
    assert shares(sim.step()) == [("a", 1), ("b", 1), ("c", 8)]
    assert shares(sim.step()) == [("a", 1), ("b", 1), ("c", 1)]


def test_only_the_chunk_that_reaches_the_last_token_samples(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=16)
    sim.add("a", 33, 2)
    samples = []
    while sim.scheduler.has_work:
        samples += [share.samples for share in sim.step().requests]
    assert samples == [False, False, True, True]
    assert sim.reasons == {"a": FinishReason.LENGTH}


def test_running_requests_come_before_waiting_ones_oldest_first(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=4)
    for name in "abcdef":
        sim.add(name, 1, 5)
    assert shares(sim.step()) == [(name, 1) for name in "abcd"]
    assert shares(sim.step()) == [(name, 1) for name in "abcd"]
    assert sim.waiting == ["e", "f"]


def test_max_num_seqs_bounds_what_runs(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=100, max_num_seqs=3)
    for name in "abcde":
        sim.add(name, 2, 2)
    assert shares(sim.step()) == [("a", 2), ("b", 2), ("c", 2)]
    assert shares(sim.step()) == [("a", 1), ("b", 1), ("c", 1)]
    assert shares(sim.step()) == [("d", 2), ("e", 2)]


def test_a_small_request_may_start_before_a_large_one_that_wants_more_pages_than_there_are(
    simulate: type[Simulation],
) -> None:
    sim = simulate(num_pages=6, budget=100)
    sim.add("a", 30, 3)
    sim.add("large", 90, 2)
    sim.add("small", 1, 1)
    sim.step()
    assert (sim.running, sim.waiting) == (["a"], ["large"])
    assert sim.reasons == {"small": FinishReason.LENGTH}
    assert (sim.requests["large"].num_overtakers, sim.scheduler.counters.overtakes) == (1, 1)
    sim.run()
    assert list(sim.reasons) == ["small", "a", "large"]


def test_nothing_to_do_is_an_empty_batch(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=4)
    assert not sim.schedule()
    assert sim.schedule().requests == ()


# ---- ends


def test_c11_eos_as_the_last_allowed_token_is_a_stop(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, next_token=lambda _, position: 9 if position == 7 else 4)
    sim.add("at the end", 4, 4, eos=[9])
    sim.add("before", 4, 5, eos=[9])
    sim.add("ignored", 4, 4)
    sim.add("by stop id", 4, 9, stop=[9])
    sim.add("never reached", 4, 3, eos=[9])
    sim.run()
    assert {name: reason.value for name, reason in sim.reasons.items()} == {
        "at the end": "stop",
        "before": "stop",
        "ignored": "length",
        "by stop id": "stop",
        "never reached": "length",
    }
    assert {name: len(output) for name, output in sim.outputs.items()} == {
        "at the end": 4,
        "before": 4,
        "ignored": 4,
        "by stop id": 4,
        "never reached": 3,
    }


def test_a_request_for_one_token_takes_one_step(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=1)
    sim.add("a", 16, 1)
    sim.step()
    assert sim.reasons == {"a": FinishReason.LENGTH}
    sim.check_idle()


def test_an_id_can_be_used_again_only_after_its_end(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8)
    sim.add("a", 4, 2)
    with pytest.raises(ValueError, match="request a is known already"):
        sim.scheduler.add(sim.requests["a"])
    sim.run()
    sim.add("a", 5, 3)
    sim.run()
    assert len(sim.outputs["a"]) == 3


# ---- the door


@pytest.mark.parametrize("budget", [16, 512])
def test_f01_what_cannot_fit_even_alone_is_refused_at_once_and_the_next_is_served(
    simulate: type[Simulation], budget: int
) -> None:
    """49 pages hold 784 tokens; the last output token is never computed and needs no slot."""
    sim = simulate(num_pages=49, budget=budget)
    for i, (prompt, max_tokens) in enumerate([(1002, 1), (1003, 20), (785, 1), (784, 2), (1, 785), (700, 86)]):
        with pytest.raises(NeverFits, match=f"{prompt + max_tokens - 1} tokens do not fit into 49 pages"):
            sim.add(f"too long {i}", prompt, max_tokens)
    assert not sim.scheduler.has_work
    for prompt, max_tokens in [(784, 1), (783, 2), (1, 784)]:
        sim.add(f"exactly {prompt}", prompt, max_tokens)
    sim.add("small", 3, 2)
    sim.run()
    assert len(sim.outputs["exactly 1"]) == 784
    assert sim.scheduler.counters.num_preemptions <= 3


@pytest.mark.parametrize(("prompt", "max_tokens"), [(0, 5), (0, 0), (16, -1)])
def test_a_request_without_prompt_or_with_a_negative_limit_is_refused(
    simulate: type[Simulation], prompt: int, max_tokens: int
) -> None:
    sim = simulate(num_pages=1)
    with pytest.raises(ValueError, match="at least one"):
        sim.add("empty", prompt, max_tokens)
    assert not sim.scheduler.has_work


def test_a_window_in_a_tiny_pool_runs_in_chunks_that_fit(simulate: type[Simulation]) -> None:
    """Window 32 in 4 pages: 31 + c positions lie in at most 4 blocks only up to c = 18."""
    sim = simulate(num_pages=4, windows=[32], budget=512, read_pages=True)
    request = sim.add("a", 300, 40)
    assert request.chunk_limit == 18
    chunks = []
    while sim.scheduler.has_work:
        chunks += [share.num_tokens for share in sim.step().requests]
    assert chunks[:17] == [18] * 16 + [12]
    assert len(sim.outputs["a"]) == 40
    sim.check_idle()


def test_a_window_that_fits_no_pool_is_refused(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=2, windows=[32], budget=512)
    with pytest.raises(NeverFits):
        sim.add("a", 300, 40)
    sim.add("short", 20, 13)
    sim.run()


# ---- prefixes


def test_a_cached_prefix_is_not_computed_again(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=512, read_pages=True)
    prompt = list(range(100))
    sim.add("cold", prompt, 3)
    sim.run()
    sim.add("warm", prompt, 3)
    batch = sim.step()
    assert [(share.num_computed_tokens, share.num_tokens) for share in batch.requests] == [(96, 4)]
    sim.run()
    counters = sim.scheduler.counters
    assert (sim.requests["cold"].num_cached_tokens, sim.requests["warm"].num_cached_tokens) == (0, 96)
    assert (counters.prompt_tokens, counters.cached_prompt_tokens, counters.generation_tokens) == (200, 96, 6)
    assert counters.recomputed_tokens == 0


def test_g01_the_last_token_of_a_cached_prompt_is_computed_anew(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=512, read_pages=True)
    for name in ("first", "second"):
        sim.add(name, list(range(48)), 3)
        sim.run()
    assert sim.requests["second"].num_cached_tokens == 32


def test_output_tokens_are_found_by_the_next_turn(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=512, windows=[None, 32], read_pages=True)
    sim.add("turn 1", list(range(30)), 50)
    sim.run()
    sim.add("turn 2", [*range(30), *sim.outputs["turn 1"], 1, 2, 3], 5)
    sim.run()
    assert sim.requests["turn 2"].num_cached_tokens == 64  # 79 of 80 were computed: four full blocks


def test_g07_salts_keep_prompts_apart(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=64, budget=512, read_pages=False)
    for name, salt in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        sim.add(name, list(range(64)), 2, salt=salt)
        sim.run()
    assert [sim.requests[name].num_cached_tokens for name in ("a1", "b1", "a2")] == [0, 0, 48]


# ---- batches and those who left


def test_a_released_id_waits_for_a_batch_that_runs_and_is_told_once(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16)
    sim.add("a", 4, 1)
    sim.step()
    assert [sim.schedule().released for _ in range(3)] == [(), (), ()]
    sim.add("b", 4, 3)
    assert [sim.step().released for _ in range(3)] == [("a",), (), ()]


def test_an_id_that_ended_and_came_back_is_released_and_admitted_in_one_batch(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16)
    sim.add("a", 4, 9)
    sim.step()
    assert sim.abort("a")
    sim.add("a", 6, 2)
    batch = sim.step()
    assert batch.released == ("a",)
    assert [(share.request_id, share.num_tokens, share.admitted) for share in batch.requests] == [("a", 6, True)]
    sim.run()


def test_a_waiting_request_that_is_aborted_was_never_shown_and_is_not_released(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16, max_num_seqs=1)
    sim.add("a", 4, 3)
    sim.add("b", 4, 3)
    sim.step()
    assert sim.abort("b")
    assert not sim.abort("b")
    sim.run()
    sim.add("c", 4, 1)
    assert sim.step().released == ("a",)


def test_h06_an_abort_while_its_step_runs_is_the_only_outcome(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16)
    sim.add("last token now", 4, 1)
    sim.add("prefilling", 60, 5)
    sim.add("goes on", 4, 3)
    sim.schedule()
    assert sim.abort("last token now")
    assert sim.abort("prefilling")
    sim.finish_step()
    assert sim.outputs["last token now"] == []
    assert not sim.abort("last token now")
    sim.run()
    assert {name: reason.value for name, reason in sim.reasons.items()} == {
        "last token now": "abort",
        "prefilling": "abort",
        "goes on": "length",
    }


def test_h06_an_id_reused_while_its_old_step_runs_is_a_new_request(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16)
    sim.add("a", 20, 3)
    sim.schedule()
    sim.abort("a")
    sim.add("a", 5, 4)
    assert not sim.schedule(), "its name is in the tables of the step that runs"
    assert sim.finish_step() == []
    batch = sim.step()
    assert (batch.released, shares(batch)) == (("a",), [("a", 5)])
    sim.run()
    assert len(sim.outputs["a"]) == 4


def test_a_step_that_failed_ends_its_requests_and_leaves_nothing_findable(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16, budget=512)
    sim.add("a", list(range(64)), 3)
    sim.schedule()
    assert sim.fail_step() == ["a"]
    assert sim.blocks.usage().free == 16
    hashes = BlockHashes(16)
    hashes.extend(list(range(64)))
    assert sim.blocks.match_prefix(hashes, 64).num_tokens == 0


def test_h06_pages_of_an_aborted_request_are_free_when_the_step_that_reads_them_is_over(
    simulate: type[Simulation],
) -> None:
    sim = simulate(num_pages=16, budget=256)
    sim.add("a", 64, 3)
    sim.add("b", 4, 3)
    sim.step()
    sim.schedule()
    sim.abort("a")
    assert sim.blocks.usage().held == 5 + 1  # its 65th token is being computed
    sim.finish_step()
    assert sim.blocks.usage().held == 1
    assert sim.step().released == ("a",)
    sim.run()
