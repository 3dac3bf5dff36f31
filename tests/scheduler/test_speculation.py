"""Drafts in steps: what they take, what stands of them, and what goes back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from scheduler.policy import FairShare
from scheduler.request import FinishReason, Request
from scheduler.speculation import NUM_STEPS_TO_FORGET, NUM_STEPS_TO_KNOW

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

ROUND = [11, 12, 13, 14, 15]


def round_and_round(request_id: str, position: int) -> int:
    """A model that repeats its prompt: every guess is right."""
    return ROUND[position % 5]


def twist_at(*places: int) -> Callable[[str, int], int]:
    """Like `round_and_round`, but for these positions."""
    return lambda request_id, position: 99 if position in places else ROUND[position % 5]


def prompt(length: int) -> list[int]:
    return [ROUND[place % 5] for place in range(length)]


def start(simulate: type[Simulation], **settings: object) -> Simulation:
    chosen: dict[str, object] = {"num_pages": 40, "next_token": round_and_round, "read_pages": True}
    chosen |= {"num_speculative_tokens": 4, "budget": 64}
    return simulate(**(chosen | settings))


def drafts_of(sim: Simulation) -> list[list[int]]:
    """One step; the drafts of its shares."""
    return [share.drafts for share in sim.step().requests]


def test_a_request_whose_guesses_are_right_takes_fewer_steps_for_the_same_tokens(simulate: type[Simulation]) -> None:
    plain, guessing = start(simulate, num_speculative_tokens=0), start(simulate)
    for sim in (plain, guessing):
        sim.add("a", prompt(12), 60)
        sim.run()
    assert plain.outputs == guessing.outputs
    assert (plain.steps, guessing.steps) == (60, 13)  # 1 + (1 + 3) + 11 * (1 + 4) tokens
    counters = guessing.scheduler.counters
    assert counters.draft_tokens == counters.accepted_draft_tokens == 60 - 13
    assert counters.generation_tokens == 60
    assert plain.scheduler.counters.drafts == 0


def test_a_prompts_own_step_has_no_drafts_and_the_first_decode_has(simulate: type[Simulation]) -> None:
    sim = start(simulate, budget=8)
    sim.add("a", prompt(12), 20)
    assert drafts_of(sim) == [[]]
    assert drafts_of(sim) == [[]]
    (draft,) = drafts_of(sim)
    assert draft == [ROUND[place % 5] for place in range(13, 13 + len(draft))] != []


def test_drafts_up_to_the_first_wrong_one_stand_and_the_drawn_token_follows(simulate: type[Simulation]) -> None:
    sim = start(simulate, next_token=twist_at(15), num_speculative_tokens=8)
    sim.add("a", prompt(12), 20)
    sim.step()
    (share,) = sim.schedule().requests
    assert share.drafts == [14, 15, 11]  # of the positions 13, 14 and 15, where the twist is
    (output,) = sim.finish_step()
    assert output.accepted == (14, 15)
    assert output.token_id == 99
    assert sim.requests["a"].num_computed_tokens == 15
    assert sim.requests["a"].num_tokens == 16


def rejecting(simulate: type[Simulation], length: int, **settings: object) -> tuple[Simulation, Request]:
    """A request of ``length`` tokens, whose next draft will be wrong from its first token on."""
    sim = start(simulate, next_token=twist_at(length), block_size=4, **settings)
    request = sim.add("a", prompt(length - 1), 20)
    sim.step()
    return sim, request


@pytest.mark.parametrize("windows", [[None], [6], [None, 6]], ids=str)
def test_pages_taken_for_drafts_that_fail_go_back_at_the_end_of_the_step(
    simulate: type[Simulation], windows: list[int | None]
) -> None:
    sim, request = rejecting(simulate, 12, windows=windows)
    columns = len(sim.blocks.groups)
    held = sim.blocks.sequence_usage("a").held_pages
    (share,) = sim.schedule().requests
    assert share.drafts == [13, 14, 15]  # in a block of their own
    assert sim.blocks.sequence_usage("a").held_pages == held + columns
    sim.finish_step()
    window_freed = sum(group.window is not None for group in sim.blocks.groups)
    assert sim.blocks.sequence_usage("a").held_pages <= held
    assert sim.blocks.sequence_usage("a").held_pages >= held - window_freed
    assert (request.num_computed_tokens, request.num_scheduled_tokens, request.num_tokens) == (12, 12, 13)
    assert request.high_water == 12
    sim.run()


def test_nothing_of_a_rejected_draft_is_ever_found_in_the_prefix_cache(simulate: type[Simulation]) -> None:
    sim, request = rejecting(simulate, 11)  # the draft would fill the third block
    sim.step()
    assert sim.outputs["a"][-1] == 99
    assert request.num_computed_tokens == 11
    sim.abort("a")
    other = sim.add("b", prompt(16), 1)
    sim.run()
    assert other.num_cached_tokens == 8  # the two blocks that were right


def test_blocks_filled_by_drafts_that_stand_are_found_in_the_prefix_cache(simulate: type[Simulation]) -> None:
    sim = start(simulate, block_size=4)
    sim.add("a", prompt(6), 30)
    sim.run()
    other = sim.add("b", prompt(36), 1)
    sim.run()
    assert other.num_cached_tokens == 32  # 35 were computed: the last token drawn never is


@pytest.mark.parametrize("ending", ["eos", "stop"])
def test_a_request_ends_at_its_end_token_though_the_draft_would_go_on(simulate: type[Simulation], ending: str) -> None:
    sim = start(simulate, num_speculative_tokens=8)
    sim.add("a", prompt(12), 60, **{ending: [15]})
    sim.run()
    assert sim.outputs["a"] == [13, 14, 15]
    assert sim.reasons["a"] is FinishReason.STOP


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_drafts_end_before_the_last_allowed_token(simulate: type[Simulation], max_tokens: int) -> None:
    sim = start(simulate, num_speculative_tokens=8)
    request = sim.add("a", prompt(12), max_tokens)
    most = 0
    while sim.scheduler.has_work:
        for share in sim.step().requests:
            most = max(most, share.num_computed_tokens + share.num_tokens)
    assert len(sim.outputs["a"]) == max_tokens
    assert sim.reasons["a"] is FinishReason.LENGTH
    assert most <= request.longest == 12 + max_tokens - 1


def test_drafts_take_only_tokens_that_the_step_has_left(simulate: type[Simulation]) -> None:
    sim = start(simulate, budget=8, num_speculative_tokens=8, long_prefill_token_threshold=1000)
    sim.add("a", prompt(8), 60)
    sim.step()
    sim.add("b", prompt(30), 1)
    assert [len(drafts) for _ in range(4) for drafts in drafts_of(sim)[:1]] == [0] * 4  # of 30 tokens 28 are computed
    assert [share.num_tokens for share in sim.step().requests] == [1 + 2, 2]
    sizes = [sim.step().num_tokens for _ in range(3)]
    assert max(sizes) == 8


def test_drafts_never_evict_what_the_cache_holds(simulate: type[Simulation]) -> None:
    sim = start(simulate, num_pages=6, block_size=4, watermark_tokens=0)
    sim.add("cached", [1, 2, 3, 4, 5, 6, 7, 8], 1)
    sim.run()
    assert sum(sim.blocks.pool.cached_pages) == 2
    sim.add("a", prompt(14), 9)
    sim.step()
    assert sim.blocks.pool.free_pages == 0
    lengths = []
    while sim.requests["a"].num_tokens < 17:
        (share,) = sim.step().requests
        lengths.append(share.num_computed_tokens + share.num_tokens)
        assert sum(sim.blocks.pool.evicted_pages) == 0
    assert max(lengths) == 16  # up to the end of the page that it had
    assert sim.scheduler.counters.accepted_draft_tokens > 0
    sim.run()


def test_drafts_leave_alone_what_is_kept_for_a_request_that_was_preempted_too_often(
    simulate: type[Simulation],
) -> None:
    sim = start(simulate, num_pages=9, block_size=4, watermark_tokens=0)
    sim.add("unlucky", 5, 30).reserved_tokens = 20
    sim.add("a", prompt(14), 8)
    sim.step()
    assert sim.running == ["unlucky", "a"]
    assert sim.blocks.pool.free_pages == 3  # the pages up to its 20 tokens
    _, share = sim.step().requests
    assert share.drafts == [ROUND[15 % 5]]  # what fits the page that it has
    assert sim.blocks.pool.free_pages == 3


def test_drafts_preempt_nobody_and_keep_nobody_waiting(simulate: type[Simulation]) -> None:
    """In a pool that is always full, everybody starts in the order and is preempted as often as without drafts."""
    source = random.Random(3)
    load = [(source.randrange(4, 20), source.randrange(10, 30)) for _ in range(12)]
    preemptions = []
    for number in (0, 4):
        sim = start(
            simulate, num_pages=14, block_size=4, num_speculative_tokens=number, next_token=twist_at(*range(0, 60, 7))
        )
        for name, (length, max_tokens) in enumerate(load):
            sim.add(str(name), prompt(length), max_tokens)
        sim.run()
        preemptions.append(sim.scheduler.counters.num_preemptions)
        assert len(sim.reasons) == 12
    assert sim.scheduler.counters.accepted_draft_tokens > 50
    assert preemptions[0] > 0


def test_an_abort_while_drafts_are_computed_leaves_every_page_free(simulate: type[Simulation]) -> None:
    sim = start(simulate, block_size=4)
    sim.add("a", prompt(12), 30)
    sim.step()
    assert sim.schedule().requests[0].num_drafts > 0
    sim.abort("a")
    assert sim.finish_step() == []
    sim.check_idle()


def test_a_failed_step_with_drafts_leaves_every_page_free(simulate: type[Simulation]) -> None:
    sim = start(simulate, block_size=4)
    sim.add("a", prompt(12), 30)
    sim.step()
    assert sim.schedule().requests[0].num_drafts > 0
    assert sim.fail_step() == ["a"]
    sim.check_idle()


def test_samples_of_one_prompt_guess_each_for_itself(simulate: type[Simulation]) -> None:
    sim = start(simulate, next_token=lambda name, position: ROUND[position % 5] + 100 * name.count("/"))
    sim.add("a", prompt(12), 30, num_samples=3)
    sim.run()
    assert sim.outputs["a/1"] == [token + 100 for token in sim.outputs["a"]]
    assert all(one.ledger.accepted_draft_tokens > 0 for one in sim.requests.values())


def test_a_request_that_was_preempted_guesses_on_from_its_whole_text(simulate: type[Simulation]) -> None:
    sim = start(simulate, num_pages=12, block_size=4, watermark_tokens=0, max_num_seqs=2)
    for name in "ab":
        sim.add(name, prompt(10), 24)
    sim.run()
    victims = [one for one in sim.requests.values() if one.num_preemptions]
    assert victims
    assert all(one.ledger.accepted_draft_tokens > 0 for one in victims)
    recomputed = sum(one.ledger.recomputed_tokens for one in victims)
    assert recomputed == sim.scheduler.counters.recomputed_tokens


def test_a_request_that_must_not_have_drafts_has_none(simulate: type[Simulation]) -> None:
    sim = start(simulate)
    sim.add("a", prompt(12), 30, speculates=False)
    sim.run()
    assert sim.steps == 30
    assert sim.scheduler.counters.drafts == 0


@pytest.mark.parametrize("length", [12, 30])
def test_a_rotated_text_is_guessed_from_what_is_left_of_it_and_rotates_where_it_would_without(
    simulate: type[Simulation], length: int
) -> None:
    rotations = []
    for number in (0, 4):
        sim = start(simulate, max_model_len=24, block_size=4, num_speculative_tokens=number)
        request = sim.add("a", prompt(length), 60, rotates=True)
        at = []
        while sim.scheduler.has_work:
            dropped = request.num_dropped_tokens
            sim.step()
            if request.num_dropped_tokens > dropped:
                at.append(len(sim.outputs["a"]))
        rotations.append(at)
    assert rotations[0] == rotations[1]
    assert len(rotations[0]) > 2
    assert request.ledger.accepted_draft_tokens > 10
    assert len(sim.outputs["a"]) == 60


def test_tenants_are_charged_for_every_token_they_get(simulate: type[Simulation]) -> None:
    debts = []
    for number in (0, 4):
        policy = FairShare({})
        sim = start(simulate, policy=policy, num_speculative_tokens=number)
        sim.add("a", prompt(12), 30, tenant="t")
        sim.run()
        debts.append(policy.debt("t"))
    assert debts == [12 + 2 * 30] * 2


# ---- what drafts cost


def learn(sim: Simulation, seconds: Callable[[int], float]) -> None:
    """Run a request whose guesses are right, in steps that take so many seconds for so many tokens."""
    sim.add("teacher", prompt(12), 400)
    while sim.scheduler.has_work:
        batch = sim.schedule()
        sim.finish_step()
        sim.scheduler.observe(batch, seconds(batch.num_tokens))
    assert sim.scheduler.counters.drafts >= NUM_STEPS_TO_KNOW


def test_the_cost_is_the_share_of_a_steps_time_times_those_who_wait_for_it(simulate: type[Simulation]) -> None:
    sim = start(simulate)
    learn(sim, lambda tokens: 0.010 + 0.001 * tokens)
    cost = sim.scheduler.speculation.cost
    assert cost(1, 1) == pytest.approx(0.001 / 0.011)
    assert cost(8, 8) == pytest.approx(8 * 0.001 / 0.018)
    assert cost(2, 102) == pytest.approx(2 * 0.001 / 0.112)  # beside a prompt a token is little


def test_while_nothing_is_known_a_token_costs_a_tenth_of_a_step_of_one(simulate: type[Simulation]) -> None:
    cost = start(simulate).scheduler.speculation.cost
    assert cost(1, 1) == pytest.approx(0.1)
    assert cost(8, 8) == pytest.approx(8 * 0.1 / 1.7)
    assert cost(2, 101) == pytest.approx(2 * 0.1 / 11)


def test_costs_are_forgotten_after_many_steps_without_drafts_so_that_they_are_tried_again(
    simulate: type[Simulation],
) -> None:
    """Steps that are all alike would else say that a token costs a step for ever."""
    sim = start(simulate, num_pages=100)
    sim.add("a", prompt(12), 700)
    sim.step()
    drafted = []
    while len(drafted) < NUM_STEPS_TO_KNOW + NUM_STEPS_TO_FORGET + 1:
        batch = sim.step()
        sim.scheduler.observe(batch, 0.010 * batch.num_tokens)
        drafted.append(batch.requests[0].num_drafts > 0)
    assert drafted == [True] * NUM_STEPS_TO_KNOW + [False] * NUM_STEPS_TO_FORGET + [True]
    sim.run()


def test_the_cost_of_prompts_tokens_is_not_taken_for_that_of_drafts(simulate: type[Simulation]) -> None:
    sim = start(simulate)
    learn(sim, lambda tokens: 0.010 + (0.001 * tokens if tokens < 10 else 1.0))
    assert sim.scheduler.speculation.cost(1, 1) == pytest.approx(0.001 / 0.011)


def test_the_larger_the_batch_the_fewer_drafts_until_there_are_none(simulate: type[Simulation]) -> None:
    drafts = []
    for num_requests in (1, 2, 4, 8, 16, 32):
        sim = start(simulate, num_pages=200, max_num_seqs=64, budget=256, num_speculative_tokens=8)
        learn(sim, lambda tokens: 0.010 + 0.001 * tokens)
        for number in range(num_requests):
            sim.add(str(number), prompt(7), 40)
        sim.step()
        sim.step()
        drafts.append(sum(map(len, drafts_of(sim))) / num_requests)
    assert drafts == sorted(drafts, reverse=True)
    assert drafts[0] > drafts[2] > drafts[-1] == 0.0


def test_drafts_end_where_a_token_costs_as_much_as_a_step(simulate: type[Simulation]) -> None:
    sim = start(simulate)
    learn(sim, lambda tokens: 0.010 * tokens)
    before = sim.scheduler.counters.drafts
    sim.add("a", prompt(12), 30)
    sim.run()
    assert sim.scheduler.counters.drafts == before


def test_a_step_draws_no_more_tokens_than_sequences_may_run_or_sixteen(simulate: type[Simulation]) -> None:
    for max_num_seqs, num_requests, most in ((4, 3, 16), (20, 4, 20)):
        sim = start(simulate, max_num_seqs=max_num_seqs, num_pages=100, budget=200, num_speculative_tokens=16)
        learn(sim, lambda tokens: 0.010 + 1e-6 * tokens)
        for number in range(num_requests):
            sim.add(str(number), prompt(12), 60)
        drawn = [sim.step().num_tokens for _ in range(5)]
        assert max(drawn[1:]) == most
