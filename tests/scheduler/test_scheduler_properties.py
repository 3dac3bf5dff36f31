"""Any load, any pool, any policy, with steps planned ahead or not: nothing hangs, starves, leaks or changes an answer.

The simulation checks budget, order, shares, releases, states and the page audit after every step. Here it is driven by
random arrivals, aborts, failures, timeouts, forks, priorities and tenants.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from block_manager.groups import plan_groups
from scheduler.admission import PREEMPTIONS_BEFORE_RESERVATION, RESERVED_TOKENS
from scheduler.policy import FairShare, FirstComeFirstServed, Policy, PriorityWithAging
from scheduler.refusal import NeverFits
from scheduler.request import FinishReason, Request

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

PLANS: list[list[int | None]] = [[None], [6], [None, 6], [5, 5, None, 5, 9], [4, 4, 4, None]]
BLOCK_SIZE = 4


def most_preemptions(request: Request) -> int:
    """After its second preemption a request is admitted with pages for 256 tokens more, then 512 more, and so on.

    It cannot be preempted before it has used them up, so that its preemption number ``n`` > 2 finds it with at least
    256 + 512 + ... = 256 * (2 ** (n - 2) - 1) tokens drawn, of less than ``max_tokens``.
    """
    doublings = math.ceil(math.log2(request.max_tokens / RESERVED_TOKENS + 1)) - 1
    return PREEMPTIONS_BEFORE_RESERVATION + max(0, doublings)


def policy(name: str) -> Policy:
    if name == "priority":
        return PriorityWithAging(aging=3.0)
    return FairShare({"a": 2.0, "b": 0.5}) if name == "fair" else FirstComeFirstServed()


def repetitive_token(request_id: str, position: int) -> int:
    """A fake model that mostly goes round in five tokens, so that guesses are right, wrong, and right up to a place."""
    noise = zlib.crc32(f"{request_id}:{position}".encode())
    return 1 + (noise % 1000 if noise % 6 == 0 else zlib.crc32(f"{request_id}:{position % 5}".encode()) % 1000)


class Load:
    """Random requests, and a bound of the steps that they take.

    Every batch has a token at least, and in one life of a request no position is in two batches: at most ``longest``
    tokens. A life ends, and another begins, by a preemption, by a failed step, and by a rotation, whose text is no
    longer than ``longest`` either. So all that were accepted end within

        sum over requests of longest * (1 + preemptions + failed steps + rotations)

    batches; and a schedule that yields no batch, while no step is under way, has preempted somebody.
    """

    def __init__(self, sim: Simulation, source: random.Random, *, rotates: bool) -> None:
        self.sim = sim
        self.source = source
        self.rotates = rotates
        self.accepted = 0
        self.never_fits = 0
        self.failures = 0

    def add(self, longest: int) -> None:
        source = self.source
        shared = source.choice([0, 0, source.randrange(longest)])
        prompt = [1] * shared + [source.randrange(1, 3) for _ in range(source.randrange(1, longest))]
        num_samples = source.choice([1, 1, 1, 2, 3, 4])
        try:
            self.sim.add(
                f"r{self.accepted + self.never_fits}",
                prompt,
                source.choice([1, source.randrange(1, longest), 2 * longest]),
                eos=[source.randrange(1, 1000) for _ in range(source.choice([0, 10, 40]))],
                salt=source.choice(["", "", "x"]),
                num_samples=num_samples,
                rotates=self.rotates and source.random() < 0.5,
                priority=source.randrange(-3, 4),
                tenant=source.choice("abc"),
                timeout=source.choice([None, None, None, 40.0]),
                queue_timeout=source.choice([None, None, None, None, 30.0]),
            )
        except NeverFits:
            self.never_fits += num_samples
        else:
            self.accepted += num_samples

    def disturb(self) -> None:
        """Sometimes abort one, or end all steps under way with a failure."""
        sim, source = self.sim, self.source
        present = [name for name in sim.requests if name not in sim.reasons]
        if present and source.random() < 0.03:
            assert sim.abort(source.choice(present))
        if sim.under_way and source.random() < 0.02:
            self.failures += 1
            sim.fail_step()

    def bound(self) -> int:
        return sum(
            request.longest * (1 + most_preemptions(request) + self.failures + request.ledger.rotations)
            for request in self.sim.requests.values()
        )


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    windows=st.sampled_from(PLANS),
    blocks=st.integers(1, 12),
    odd_pages=st.integers(0, 2),
    host_pages=st.sampled_from([0, 0, 5, 100]),
    budget=st.sampled_from([1, 2, 5, 8, 32]),
    max_num_seqs=st.sampled_from([1, 2, 4, 8]),
    caching=st.booleans(),
    policy_name=st.sampled_from(["fcfs", "priority", "fair"]),
    depth=st.sampled_from([0, 1, 2]),
    max_queued=st.sampled_from([3, 1000, 1000]),
    rotates=st.booleans(),
    num_drafts=st.sampled_from([0, 0, 1, 4]),
    seed=st.integers(0, 2**32),
)
def test_whatever_comes_every_request_ends_once_and_in_time_with_the_tokens_it_has_alone(
    simulate: type[Simulation],
    windows: list[int | None],
    blocks: int,
    odd_pages: int,
    host_pages: int,
    budget: int,
    max_num_seqs: int,
    caching: bool,
    policy_name: str,
    depth: int,
    max_queued: int,
    rotates: bool,
    num_drafts: int,
    seed: int,
) -> None:
    source = random.Random(seed)
    if num_drafts:
        depth = 0  # drafts want to know what the step before them drew
    sim = simulate(
        num_pages=blocks * sum(group.pages_per_block for group in plan_groups(windows)) + odd_pages,
        windows=windows,
        budget=budget,
        max_num_seqs=max_num_seqs,
        block_size=BLOCK_SIZE,
        caching=caching,
        num_host_pages=host_pages,
        policy=policy(policy_name),
        depth=depth,
        max_queued_requests=max_queued,
        max_model_len=24 if rotates else None,
        watermark_tokens=source.choice([0, 1, 4, 32]),
        long_prefill_token_threshold=source.choice([None, None, 1, 1000]),
        max_overtakes=source.choice([0, 1, 16]),
        seconds_per_page=source.choice([0.0, 2e-5]),
        num_speculative_tokens=num_drafts,
        read_pages=True,
        **({"next_token": repetitive_token} if num_drafts else {}),
    )
    load = Load(sim, source, rotates=rotates)
    for _ in range(8):
        load.add(20)
    while sim.scheduler.has_work or sim.under_way:
        sim.step()
        sim.now += source.choice([0.0, 1.0])
        load.disturb()
        if load.accepted + load.never_fits < 16 and source.random() < 0.15:
            load.add(20)
        assert sim.steps <= load.bound()
    sim.check_idle()
    counters = sim.scheduler.counters
    assert len(sim.reasons) == load.accepted
    assert counters.refusals.total() == len(sim.refusals)
    assert counters.generation_tokens == sum(map(len, sim.outputs.values()))
    assert counters.num_preemptions == sum(request.num_preemptions for request in sim.requests.values())
    for name in ("draft_tokens", "accepted_draft_tokens"):
        assert getattr(counters, name) == sum(getattr(one.ledger, name) for one in sim.requests.values())
    assert counters.accepted_draft_tokens <= counters.draft_tokens <= num_drafts * counters.drafts
    assert counters.recomputed_tokens == sum(request.ledger.recomputed_tokens for request in sim.requests.values())
    assert counters.rotations == sum(request.ledger.rotations for request in sim.requests.values())
    families: dict[str, list[Request]] = {}
    for name, request in sim.requests.items():
        families.setdefault(name.split("/")[0], []).append(request)
    started = [family for family in families.values() if any(one.num_cached_tokens is not None for one in family)]
    assert counters.prompt_tokens == sum(family[0].num_prompt_tokens for family in started), "once for all samples"
    cached = sum(max(one.num_cached_tokens or 0 for one in family) for family in started)
    assert counters.cached_prompt_tokens == cached
    assert counters.prompt_tokens - cached == counters.missed_tokens.total()
    for name, reason in sim.reasons.items():
        request = sim.requests[name]
        assert request.num_preemptions <= most_preemptions(request)
        if reason in (FinishReason.LENGTH, FinishReason.STOP):
            assert (reason is FinishReason.LENGTH) == (sim.outputs[name][-1] not in request.eos_token_ids)
            assert len(sim.outputs[name]) == request.max_tokens or reason is FinishReason.STOP


@pytest.mark.parametrize(("policy_name", "depth"), [("fcfs", 0), ("priority", 1), ("fair", 0)])
def test_long_answers_in_a_pool_for_one_or_two_are_preempted_no_more_often_than_reservations_allow(
    simulate: type[Simulation], policy_name: str, depth: int
) -> None:
    """Several reservations deep: answers of up to 1100 tokens, a dozen at once, in pages for two of them."""
    source = random.Random(7)
    sim = simulate(
        num_pages=80,
        windows=[None],
        budget=64,
        max_num_seqs=12,
        policy=policy(policy_name),
        depth=depth,
        watermark_tokens=0,
        num_host_pages=source.choice([0, 40]),
    )
    for number in range(9):
        sim.add(
            f"r{number}",
            source.choice([5, 40, 100]),
            source.choice([100, 600, 1100]),
            num_samples=source.choice([1, 1, 2]),
            priority=source.randrange(-3, 4),
            tenant=source.choice("abc"),
        )
    sim.run(limit=sum(one.longest * (1 + most_preemptions(one)) for one in sim.requests.values()))
    assert all(one.num_preemptions <= most_preemptions(one) for one in sim.requests.values())
    assert max(one.num_preemptions for one in sim.requests.values()) >= 3


@pytest.mark.parametrize(
    ("max_tokens", "preemptions"), [(1, 2), (256, 2), (257, 3), (768, 3), (769, 4), (1792, 4), (1793, 5), (100_000, 10)]
)
def test_how_often_a_request_can_be_preempted(
    make_request: Callable[..., Request], max_tokens: int, preemptions: int
) -> None:
    assert most_preemptions(make_request("a", max_tokens=max_tokens)) == preemptions
