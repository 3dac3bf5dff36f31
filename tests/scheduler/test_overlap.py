"""Steps planned while others run: the same answers, and nothing is taken from under a step that reads it.

The simulation checks in every run that placeholders stand only for what a step under way draws, that nobody is
preempted while one runs, that pages of who ended stay theirs until it is over, and that a runner's rows suffice.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from block_manager.groups import plan_groups
from scheduler.batch import PLACEHOLDER
from scheduler.preemption_record import PreemptionKind
from scheduler.refusal import NeverFits
from scheduler.request import FinishReason

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

PLANS: list[list[int | None]] = [[None], [6], [None, 6], [5, 5, None, 5, 9]]


def test_a_request_alone_is_scheduled_ahead_by_a_placeholder(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, depth=1, budget=64)
    sim.add("a", 20, 4)
    first, second = sim.schedule(), sim.schedule()
    assert [len(share.token_ids) for share in first.requests] == [20]
    (share,) = second.requests
    assert (share.token_ids, share.num_computed_tokens, share.samples) == ([PLACEHOLDER], 20, True)
    assert (first.requests[0].output_index, share.output_index) == (0, 1)
    sim.finish_step()
    third = sim.schedule()
    assert third.requests[0].token_ids == [PLACEHOLDER]
    sim.finish_step()
    sim.finish_step()
    assert len(sim.outputs["a"]) == 3
    sim.run()


def test_no_step_is_planned_beyond_the_last_token_a_request_may_have(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, depth=2, budget=64)
    sim.add("a", 20, 2)
    assert [len(sim.schedule().requests) for _ in range(3)] == [1, 1, 0]
    sim.run()
    assert sim.reasons == {"a": FinishReason.LENGTH}


def test_who_does_not_draw_ahead_takes_part_in_every_other_step_and_the_others_in_all(
    simulate: type[Simulation],
) -> None:
    sim = simulate(num_pages=8, depth=1, budget=16, long_prefill_token_threshold=16)
    sim.add("waits", 20, 3, draws_ahead=False)
    sim.add("goes on", 4, 6)
    steps = []
    while sim.scheduler.has_work:
        steps.append({share.request_id: share.token_ids for share in sim.step().requests})
    sim.run()
    names = [sorted(step) for step in steps]
    assert names[:2] == [["waits"], ["goes on", "waits"]], "chunks of a prompt are planned ahead"
    assert names[2:6] == [["goes on"], ["goes on", "waits"]] * 2
    assert all(PLACEHOLDER not in step.get("waits", []) for step in steps)
    assert steps[2]["goes on"] == [PLACEHOLDER]
    assert [len(sim.outputs[name]) for name in ("waits", "goes on")] == [3, 6]


def test_alone_it_is_planned_when_its_token_is_known(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, depth=2, budget=64)
    sim.add("a", 20, 3, draws_ahead=False, num_samples=2)
    assert sim.schedule()
    assert not sim.schedule()
    sim.finish_step()
    assert [share.token_ids for share in sim.schedule().requests] == [sim.outputs["a"][-1:], sim.outputs["a/1"][-1:]]
    sim.run()


def test_long_prompts_leave_steps_short_for_a_stream_that_waits_for_its_token(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=40, depth=1, budget=64, long_prefill_token_threshold=16)
    sim.add("stream", 4, 12, draws_ahead=False)
    sim.step()
    sim.add("long", 160, 1)
    sizes = []
    while "stream" not in sim.reasons:
        sizes.append(sim.step().num_tokens)
    assert max(sizes) <= 17
    sim.run()


@pytest.mark.parametrize("depth", [1, 2])
def test_what_was_planned_behind_an_eos_is_dropped(simulate: type[Simulation], depth: int) -> None:
    sim = simulate(num_pages=8, depth=depth, next_token=lambda _, position: 9 if position == 25 else 4)
    sim.add("a", 20, 50, eos=[9])
    sim.run()
    assert sim.outputs["a"] == [4, 4, 4, 4, 4, 9]
    assert sim.reasons == {"a": FinishReason.STOP}
    assert sim.steps == 6 + depth
    assert sim.scheduler.counters.generation_tokens == 6


def test_the_row_of_who_ended_is_free_for_a_newcomer_in_the_next_step(simulate: type[Simulation]) -> None:
    """As many run as may, and a step that reads the pages of the one that ended is still under way."""
    sim = simulate(num_pages=16, max_num_seqs=2, depth=1, next_token=lambda name, _: 9 if name == "ends" else 4)
    sim.add("ends", 4, 9, eos=[9])
    sim.add("goes on", 4, 9)
    sim.add("newcomer", 4, 3)
    sim.schedule()
    sim.schedule()
    sim.finish_step()
    assert sim.reasons == {"ends": FinishReason.STOP}
    assert set(sim.blocks.sequences) == {"ends", "goes on"}
    batch = sim.schedule()
    assert batch.released == ("ends",)
    assert [(share.request_id, share.admitted) for share in batch.requests] == [("goes on", False), ("newcomer", True)]
    assert set(sim.blocks.sequences) == {"ends", "goes on", "newcomer"}
    sim.finish_step()
    assert set(sim.blocks.sequences) == {"goes on", "newcomer"}
    sim.run()


def test_pages_of_who_was_aborted_are_not_given_away_while_a_step_reads_them(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=4, depth=1, budget=64)
    sim.add("a", 60, 4)
    sim.schedule()
    sim.abort("a")
    sim.add("b", 30, 4)
    assert not sim.schedule(), "no page is free"
    sim.finish_step()
    batch = sim.schedule()
    assert batch.released == ("a",)
    assert [share.request_id for share in batch.requests] == ["b"]
    sim.run()


def test_nobody_is_preempted_while_a_step_runs(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=4, depth=1, budget=64, watermark_tokens=0)
    sim.add("a", 32, 10)
    sim.add("b", 31, 10)
    sim.schedule()
    assert not sim.schedule(), "both want a fifth page"
    assert sim.scheduler.counters.num_preemptions == 0
    sim.finish_step()
    batch = sim.schedule()
    assert [share.request_id for share in batch.requests] == ["a"]
    assert (sim.scheduler.counters.num_preemptions, batch.released) == (1, ("b",))
    sim.run()
    assert len(sim.outputs["b"]) == 10


def test_a_child_aborted_while_the_prompt_is_computed_draws_nothing(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16, depth=1, budget=64)
    sim.add("a", 20, 4, num_samples=3)
    batch = sim.schedule()
    assert batch.requests[0].sequence_ids == ("a", "a/1", "a/2")
    assert not sim.schedule(), "the parent goes on when its children have their share of its pages"
    sim.abort("a/1")
    outputs = sim.finish_step()
    assert [output.request.request_id for output in outputs] == ["a", "a/2"]
    sim.run()


def test_the_heir_of_a_parent_aborted_in_its_last_prompt_step_computes_the_prompt(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=16, depth=1, budget=64, read_pages=True)
    sim.add("a", 20, 4, num_samples=2)
    sim.schedule()
    sim.abort("a")
    assert sim.finish_step() == []
    assert sim.waiting == ["a/1"]
    sim.run()
    assert len(sim.outputs["a/1"]) == 4


# ---- a step fails


def test_a_request_that_found_what_the_failed_step_was_to_fetch_begins_anew(simulate: type[Simulation]) -> None:
    """The prefix is in host pages. One request has it fetched, another joins it a step later, and nothing comes."""
    sim = simulate(num_pages=8, depth=1, budget=256, num_host_pages=16, read_pages=True)
    prefix = [1] * 64
    sim.add("first", [*prefix, 2], 2)
    sim.run()
    sim.add("evicts", [3] * 127, 2)
    sim.run()
    sim.add("fetches", [*prefix, 4], 3)
    sim.schedule()
    sim.add("joins", [*prefix, 5], 3)
    second = sim.schedule()
    assert [(share.request_id, share.num_computed_tokens) for share in second.requests][-1] == ("joins", 64)
    assert sim.fail_step() == ["fetches"]
    assert (sim.running, sim.waiting) == ([], ["joins"])
    assert set(sim.blocks.sequences) == {"fetches", "joins"}, "the step behind it still reads them"
    sim.run()
    assert len(sim.outputs["joins"]) == 3
    assert sim.requests["joins"].num_preemptions == 0


def test_a_failed_step_loses_what_was_swapped_out_but_no_request(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=6, budget=64, num_host_pages=6, seconds_per_page=0.0, read_pages=True, watermark_tokens=0)
    sim.add("a", 30, 40)
    sim.add("b", 30, 40)
    while not sim.blocks.swapped:
        batch = sim.schedule()
        if not sim.blocks.swapped:
            sim.finish_step()
    assert [share.request_id for share in batch.requests] == ["a"]
    assert sim.fail_step() == ["a"]
    assert not sim.blocks.swapped
    assert sim.scheduler.waiting.num_tokens == sim.requests["b"].num_tokens
    sim.run()
    assert len(sim.outputs["b"]) == 40


def test_a_step_that_fails_ends_its_samples_and_the_next_one_goes_on_without_them(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, depth=1, budget=40, max_num_seqs=8, read_pages=True)
    sim.add("a", 60, 4, num_samples=3)
    sim.schedule()
    sim.schedule()
    assert sim.fail_step() == ["a/2", "a/1", "a"]
    sim.add("b", 20, 4)
    assert sim.schedule()
    assert sim.finish_step() == []
    sim.run()
    assert len(sim.outputs["b"]) == 4


# ---- any load


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    windows=st.sampled_from(PLANS),
    blocks=st.integers(2, 10),
    budget=st.sampled_from([1, 4, 9, 40]),
    max_num_seqs=st.sampled_from([2, 4, 8]),
    host_pages=st.sampled_from([0, 30]),
    seed=st.integers(0, 2**32),
)
def test_any_depth_gives_the_tokens_of_the_synchronous_run(
    simulate: type[Simulation],
    windows: list[int | None],
    blocks: int,
    budget: int,
    max_num_seqs: int,
    host_pages: int,
    seed: int,
) -> None:
    """Forks, ends by EOS, rotations, swaps, tiny pools; aborts too, which end an answer at one place or another."""
    ends = []
    for depth in (0, 1, 2):
        source = random.Random(seed)
        sim = simulate(
            num_pages=blocks * sum(group.pages_per_block for group in plan_groups(windows)),
            windows=windows,
            budget=budget,
            max_num_seqs=max_num_seqs,
            block_size=4,
            num_host_pages=host_pages,
            max_model_len=24,
            seconds_per_page=0.0,
            watermark_tokens=1,
            read_pages=True,
            depth=depth,
        )
        aborted = {}
        for number in range(9):
            prompt = [1] * source.choice([0, 8, 13]) + [source.randrange(2, 5) for _ in range(source.randrange(1, 9))]
            num_samples = source.choice([1, 1, 2, 3])
            eos = [source.randrange(1, 1000) for _ in range(30)]
            rotates = source.random() < 0.3
            try:
                sim.add(
                    f"r{number}",
                    prompt,
                    source.randrange(1, 30),
                    eos=eos,
                    num_samples=num_samples if num_samples <= max_num_seqs else 1,
                    rotates=rotates,
                    draws_ahead=number % 3 > 0,
                )
            except NeverFits:
                continue
            if source.random() < 0.2:
                aborted[f"r{number}"] = source.randrange(20)
        while sim.scheduler.has_work or sim.under_way:
            sim.step()
            for name, step in aborted.items():
                if sim.steps >= step and name not in sim.reasons:
                    sim.abort(name)
            assert sim.steps < 5000
        sim.check_idle()
        ends.append({name: (sim.outputs[name], sim.reasons[name]) for name in sim.requests if name not in aborted})
    assert ends[0] == ends[1] == ends[2]


def test_swaps_and_recomputation_happen_with_steps_planned_ahead(simulate: type[Simulation]) -> None:
    """What the random runs rely on: tight pools do preempt, in both ways, at every depth."""
    for depth in (0, 1, 2):
        kinds = set()
        for host_pages in (0, 8):
            sim = simulate(
                num_pages=8, depth=depth, num_host_pages=host_pages, seconds_per_page=0.0, watermark_tokens=0, budget=64
            )
            for name in "abcd":
                sim.add(name, 20, 60)
            sim.run()
            kinds |= {kind for kind, _ in sim.scheduler.counters.preemptions}
        assert kinds == {PreemptionKind.SWAP, PreemptionKind.RECOMPUTE}
