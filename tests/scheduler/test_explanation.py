"""The plain answer to "why does this request wait, and why was it preempted?"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.explanation import Explanation
from scheduler.preemption_record import Preemption, PreemptionCause, PreemptionKind
from scheduler.request import RequestStatus, WaitReason

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation


def text(sim: Simulation, name: str) -> str:
    explanation = sim.scheduler.explain(name)
    assert explanation is not None
    return explanation.text()


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        (WaitReason.PAGES, "it needs 7 pages, 3 are available"),
        (WaitReason.SEQUENCES, "as many sequences run as may (--max-num-seqs)"),
        (WaitReason.TOKENS, "the tokens of each step are used up by requests before it"),
        (WaitReason.PREEMPTION, "running requests are short of pages, so nobody starts"),
        (WaitReason.BEHIND, "requests before it go first"),
        (None, "requests before it go first"),
    ],
)
def test_each_reason_to_wait_has_its_words(reason: WaitReason | None, why: str) -> None:
    explanation = Explanation(
        request_id="a",
        status=RequestStatus.WAITING,
        seconds_since_arrival=2.34,
        position=5,
        wait_reason=reason,
        wanted_pages=7,
        available_pages=3,
    )
    assert explanation.text() == f"It waits at position 5 for 2.3 s: {why}."


def test_an_estimate_is_given_where_there_is_one() -> None:
    explanation = Explanation(
        request_id="a",
        status=RequestStatus.WAITING,
        seconds_since_arrival=0.0,
        position=1,
        expected_start_seconds=12.345,
        wait_reason=WaitReason.TOKENS,
    )
    assert explanation.text().endswith("before it; it is expected to start in 12.3 s.")


def test_each_preemption_is_told() -> None:
    by_other = Preemption(1.0, "a", "b", PreemptionKind.RECOMPUTE, PreemptionCause.PREFILL, 3, 40)
    by_itself = Preemption(2.0, "a", "a", PreemptionKind.SWAP, PreemptionCause.DECODE, 4, 0)
    explanation = Explanation(
        request_id="a",
        status=RequestStatus.RUNNING,
        seconds_since_arrival=9.0,
        num_tokens=50,
        num_computed_tokens=49,
        num_output_tokens=10,
        preemptions=[by_other, by_itself],
    )
    assert explanation.text() == (
        "It is running: 49 of 50 tokens are computed, 10 were generated. "
        "It was preempted (for b, prefill): 3 pages were freed and up to 40 tokens are computed again. "
        "It was preempted (older requests kept their pages, decode): "
        "4 pages were freed and its pages moved to host memory."
    )


def test_the_scheduler_explains_every_state_of_a_request(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, budget=16, max_num_seqs=3, long_prefill_token_threshold=100)
    sim.add("a", 20, 9, num_samples=2)
    sim.add("b", 5, 3)
    sim.add("c", 5, 3)
    sim.step()
    sim.now = 1.5
    assert text(sim, "a") == "It is running: 16 of 20 tokens are computed, 0 were generated."
    assert text(sim, "a/1") == (
        "It waits for the first sample of its prompt to be computed, whose pages it will share."
    )
    assert text(sim, "b") == (
        "It waits at position 1 for 1.5 s: the tokens of each step are used up by requests before it."
    )
    assert text(sim, "c") == "It waits at position 2 for 1.5 s: requests before it go first."
    sim.scheduler.outlook.step_time.observe(16, 0.2)
    sim.step()
    explanation = sim.scheduler.explain("c")
    assert explanation is not None
    assert (explanation.position, explanation.wait_reason) == (1, WaitReason.SEQUENCES)
    # b draws two tokens more, in steps of three
    assert explanation.expected_start_seconds == pytest.approx(2 * sim.scheduler.outlook.step_time.seconds(3))
    assert explanation.num_overtakers == 0
    sim.run()
    assert sim.scheduler.explain("a") is None
    assert sim.scheduler.explain("nobody") is None


def test_who_wants_pages_is_told_how_many_and_how_many_have_passed(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=8, budget=256, watermark_tokens=0)
    sim.add("a", 60, 30)
    sim.step()
    sim.add("large", 100, 2)
    sim.add("small", 1, 2)
    sim.step()
    explanation = sim.scheduler.explain("large")
    assert explanation is not None
    assert (explanation.wait_reason, explanation.wanted_pages) == (WaitReason.PAGES, 7)
    assert explanation.num_overtakers == 1
    assert explanation.text() == "It waits at position 1 for 0.0 s: it needs 7 pages, 3 are available."
    sim.run()


def test_a_preempted_request_is_explained_with_its_preemption(simulate: type[Simulation]) -> None:
    sim = simulate(num_pages=6, budget=64, watermark_tokens=0)
    sim.add("a", 30, 40)
    sim.add("b", 30, 40)
    while not sim.requests["b"].num_preemptions:
        sim.step()
    assert text(sim, "b") == (
        "It waits at position 1 for 0.0 s: running requests are short of pages, so nobody starts. "
        "It was preempted (for a, decode): 3 pages were freed and up to 48 tokens are computed again."
    )
    sim.run()
