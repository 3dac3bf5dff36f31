"""The door: what can never run is refused at once, and what may start now leaves room for those that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.admission import PREEMPTIONS_BEFORE_RESERVATION, RESERVED_TOKENS
from scheduler.preemption_record import Preemption, PreemptionCause, PreemptionKind
from scheduler.refusal import NeverFits
from scheduler.request import Request, WaitReason

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

PREEMPTION = Preemption(0.0, "a", "b", PreemptionKind.RECOMPUTE, PreemptionCause.DECODE, 1, 1)


def preempted(request: Request, times: int) -> Request:
    """As if it had been preempted so often."""
    request.ledger.preemptions += [PREEMPTION] * times
    return request


def reason(sim: Simulation, name: str) -> WaitReason:
    return sim.scheduler.planner.wait_reason(sim.requests[name])


# ---- ever


@pytest.mark.parametrize(
    ("windows", "num_pages", "prompt", "max_tokens", "chunk_limit"),
    [
        # block size 4, budget 32
        ([None], 5, 20, 1, 32),
        ([None], 5, 1, 20, 32),
        ([None], 5, 20, 2, 0),
        ([None], 5, 21, 1, 0),
        ([8], 3, 500, 100, 2),  # 7 + 2 positions touch at most 3 blocks
        ([8], 4, 500, 100, 6),
        ([8], 2, 500, 100, 0),
        ([8], 2, 4, 5, 32),  # all of it lies in two blocks
        ([None, 8], 153, 500, 101, 2),  # 150 blocks of the full layer, and 3
        ([None, 8], 152, 500, 101, 0),
        ([None, 8, 8], 12, 16, 1, 32),  # the windowed block has two columns: 4 + 4 * 2
        ([None, 8, 8], 11, 16, 1, 2),
        ([None, 8, 8], 10, 16, 1, 2),
        ([None, 8, 8], 9, 16, 1, 0),
    ],
)
def test_f01_the_proof_knows_windows_columns_and_chunks(
    simulate: type[Simulation],
    windows: list[int | None],
    num_pages: int,
    prompt: int,
    max_tokens: int,
    chunk_limit: int,
) -> None:
    sim = simulate(num_pages=num_pages, windows=windows, block_size=4, budget=32, read_pages=True)
    if not chunk_limit:
        with pytest.raises(NeverFits, match=f"{prompt + max_tokens - 1} tokens do not fit into {num_pages} pages"):
            sim.add("a", prompt, max_tokens)
        assert not sim.scheduler.has_work
        sim.add("small", 1, 1)
        sim.run()
        return
    request = sim.add("a", prompt, max_tokens)
    assert (request.longest, request.chunk_limit) == (prompt + max_tokens - 1, chunk_limit)
    sim.run()
    assert len(sim.outputs["a"]) == max_tokens


def test_a_request_that_rotates_needs_no_more_than_its_context(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=5, block_size=4, budget=32, max_model_len=16, read_pages=True)
    with pytest.raises(NeverFits):
        sim.add("a", 10, 200)
    request = sim.add("b", 10, 200, rotates=True)
    assert request.longest == 16
    sim.run()
    assert len(sim.outputs["b"]) == 200
    # 17 tokens become 4 + 8; then each 5 tokens more: (200 - 7) / 5
    assert sim.scheduler.counters.rotations == request.ledger.rotations == 39
    with pytest.raises(NeverFits):
        sim.add("c", 21, 1, rotates=True)


def test_without_a_context_length_a_request_rotates_where_the_pool_ends(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=5, block_size=4, budget=32, read_pages=True)
    request = sim.add("a", 10, 100, rotates=True)
    assert request.longest == 20
    sim.run()
    assert len(sim.outputs["a"]) == 100
    assert request.ledger.peak_pages == 5


def test_a_prompt_longer_than_the_context_at_which_it_rotates_runs_ahead_as_it_runs_in_step(
    simulate: type[Simulation],
) -> None:
    """When its first token makes it rotate, the step behind may be computing its second."""
    outputs = []
    for depth in (0, 1, 2):
        sim = simulate(num_pages=8, windows=[6], block_size=4, budget=64, max_model_len=16, depth=depth)
        sim.add("a", 30, 40, rotates=True)
        sim.run()
        outputs.append((sim.outputs["a"], sim.scheduler.counters.rotations))
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_family_larger_than_may_run_never_fits(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=20, max_num_seqs=3)
    with pytest.raises(NeverFits, match="4 sequences of one prompt, but at most 3 run at once"):
        sim.add("a", 5, 5, num_samples=4)
    assert not sim.scheduler.has_work
    sim.add("a", 5, 5, num_samples=3)
    sim.run()
    assert {name: len(output) for name, output in sim.outputs.items()} == {"a": 5, "a/1": 5, "a/2": 5}


# ---- now


def test_a_family_waits_for_places_for_all_of_it(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=40, max_num_seqs=4)
    sim.add("a", 5, 3, num_samples=2)
    sim.add("b", 5, 4)
    sim.add("c", 5, 2, num_samples=2)
    sim.step()
    assert (sim.running, sim.waiting) == (["a", "a/1", "b"], ["c"])
    assert reason(sim, "c") is WaitReason.SEQUENCES
    sim.step()
    sim.step()
    assert sim.running == ["b"]
    assert sim.step().num_tokens == 1 + 5
    sim.run()


@pytest.mark.parametrize(("watermark", "starts"), [(0, True), (32, True), (33, False)])
def test_nobody_starts_unless_those_that_run_can_grow_by_the_watermark(
    simulate: type[Simulation], watermark: int, starts: bool
) -> None:
    """Ten blocks of 16: a has 48 tokens in three, and b wants five, which is all it can ever need."""
    sim = simulate(num_pages=10, budget=200, watermark_tokens=watermark)
    sim.add("a", 47, 40)
    sim.step()  # 48 tokens are known
    sim.add("b", 79, 2)
    sim.step()
    assert (sim.running == ["a", "b"]) is starts
    if not starts:
        assert reason(sim, "b") is WaitReason.PAGES
        assert (sim.requests["b"].wanted_pages, sim.blocks.available_pages) == (5 + 3, 7)
    sim.run()


def test_those_that_start_in_one_step_leave_room_for_each_other(simulate: type[Simulation]) -> None:
    """Each wants two pages, and one more for its watermark: two of them in eight, not three."""
    sim = simulate(num_pages=8, budget=200, watermark_tokens=16)
    for name in "abc":
        sim.add(name, 32, 30)
    sim.step()
    assert sim.running == ["a", "b"]
    assert (sim.requests["c"].wanted_pages, sim.blocks.available_pages) == (3 + 1 + 1, 4)
    sim.run()


def test_room_for_samples_that_will_run_beside_a_prompt_is_left_too(simulate: type[Simulation]) -> None:
    """Two further samples take a copy of the last page each, and one more: four of ten pages, beside two and one."""
    sim = simulate(num_pages=10, budget=24, watermark_tokens=16, max_num_seqs=8)
    sim.add("runs", 8, 30)
    sim.step()
    sim.add("a", 40, 30, num_samples=3)
    sim.step()
    assert sim.running == ["runs", "a"]
    sim.add("b", 16, 20)
    sim.step()
    assert reason(sim, "b") is WaitReason.PAGES
    sim.run()


def test_where_nothing_runs_the_proof_is_enough(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=4, watermark_tokens=1000, budget=64)
    sim.add("a", 60, 5)
    sim.step()
    assert sim.running == ["a"]
    sim.run()


def test_a_prefix_that_others_hold_costs_no_pages(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=10, budget=200, watermark_tokens=0)
    sim.add("a", [1] * 130, 3)
    sim.step()
    sim.add("cold", [2] * 130, 3)
    sim.add("warm", [1] * 128 + [5], 3)
    sim.step()
    assert sim.running == ["a", "warm"]
    assert sim.requests["warm"].num_cached_tokens == 128
    assert reason(sim, "cold") is WaitReason.PAGES
    sim.run()


# ---- reservations


@pytest.mark.parametrize(
    ("times", "reserved"),
    [(0, 0), (1, 0), (2, 20 + 256), (3, 20 + 512), (4, 20 + 1024), (5, 20 + 2048), (6, 20 + 3000 - 1)],
)
def test_from_the_second_preemption_on_pages_are_kept_for_twice_as_much_growth_each_time(
    simulate: type[Simulation], times: int, reserved: int
) -> None:
    assert (PREEMPTIONS_BEFORE_RESERVATION, RESERVED_TOKENS) == (2, 256)
    sim = simulate(num_pages=300)
    request = preempted(sim.add("a", 20, 3000), times)
    sim.step()
    assert request.reserved_tokens == reserved
    assert request.holds_reservation == (reserved > 0)


def test_kept_pages_are_not_taken_by_others(simulate: type[Simulation]) -> None:
    """The older one gives way to the newer one, for which pages are kept, and then waits until they are used."""
    sim = simulate(num_pages=24, budget=64, watermark_tokens=0)
    sim.add("a", 40, 300)
    sim.step()
    kept = preempted(sim.add("b", 20, 250), 2)  # all its 269 tokens: 17 blocks
    sim.step()
    assert sim.running == ["a", "b"]
    assert kept.reserved_tokens == 269
    while sim.scheduler.counters.num_preemptions < 1:
        sim.step()
    (record,) = sim.requests["a"].ledger.preemptions
    assert (record.victim, record.requester) == ("a", "a")
    assert sim.requests["a"].num_tokens == 7 * 16 + 1  # 24 - 17 blocks were for it
    assert sim.blocks.available_pages >= 17 - sim.blocks.sequence_usage("b").held_pages
    sim.run()
    assert kept.num_preemptions == 2
    assert list(sim.reasons) == ["b", "a"]


def test_nobody_starts_on_kept_pages(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=24, budget=256, watermark_tokens=0)
    preempted(sim.add("a", 20, 250), 2)
    sim.step()
    sim.add("wants 7", 7 * 16 - 1, 1)
    sim.step()
    assert "wants 7" in sim.reasons
    sim.add("wants 8", 8 * 16 - 1, 2)
    sim.step()
    assert reason(sim, "wants 8") is WaitReason.PAGES
    assert (sim.requests["wants 8"].wanted_pages, sim.blocks.available_pages) == (8 + 15, 22)
    sim.run()
    assert list(sim.reasons) == ["wants 7", "a", "wants 8"]


def test_a_reservation_lapses_when_it_is_used_up(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=40, budget=64, watermark_tokens=0)
    request = preempted(sim.add("a", 20, 600), 2)
    held = []
    while request.num_tokens < 20 + 256 + 2:
        sim.step()
        held.append((request.num_tokens, request.holds_reservation))
    assert held[-4:] == [(275, True), (276, True), (277, False), (278, False)]
    assert sim.scheduler.running.reserving == [request]
    assert sim.scheduler.planner.admission.kept_pages([request]) == 0
    sim.run()
    assert sim.scheduler.running.reserving == []


def test_who_holds_a_reservation_may_take_the_pages_of_who_goes_before_it(simulate: type[Simulation]) -> None:
    """Pages that are kept are there; here they are claimed too late."""
    sim = simulate(num_pages=5, budget=64, watermark_tokens=0)
    sim.add("a", 30, 40)
    sim.add("b", 25, 40)
    sim.step()
    b = sim.requests["b"]
    while sim.blocks.available_pages:
        sim.step()
    b.reserved_tokens = b.longest
    sim.run()
    assert (sim.requests["a"].num_preemptions, b.num_preemptions) == (1, 0)
    assert sim.requests["a"].ledger.preemptions[0].requester == "b"
