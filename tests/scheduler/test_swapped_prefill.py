"""Requests swapped out in the middle of a long prompt come back, whatever windows and pools: nothing waits for ever."""

from __future__ import annotations

import random

import pytest

from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from scheduler.config import SchedulerConfig
from scheduler.preemption_record import PreemptionKind
from scheduler.refusal import NeverFits
from scheduler.request import Request
from scheduler.scheduler import Scheduler

PLANS = [(None, 8), (8,), (None, 4, 4, 4), (None,)]


def request(name: str, prompt: int, max_tokens: int, block_size: int) -> Request:
    return Request(
        request_id=name,
        token_ids=list(range(1, prompt + 1)),
        max_tokens=max_tokens,
        eos_token_ids=frozenset(),
        stop_token_ids=frozenset(),
        block_hashes=BlockHashes(block_size, name),
    )


def run(scheduler: Scheduler) -> None:
    """Every step has something to run until all is done."""
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch, f"nothing runs, and {[one.request_id for one in scheduler.waiting]} wait"
        scheduler.update(batch, {share.request_id: 5 for share in batch.requests if share.samples})
    assert scheduler.blocks.audit() == []
    assert not scheduler.blocks.swapped


@pytest.mark.parametrize("windows", PLANS)
def test_a_prompt_swapped_out_half_way_is_finished(windows: tuple[int | None, ...]) -> None:
    swaps = 0
    for seed in range(400):
        rng = random.Random(seed)
        block_size, budget = rng.choice([1, 2, 4]), rng.choice([4, 8, 12])
        blocks = BlockManager(plan_groups(windows), rng.randrange(10, 60), block_size, num_host_pages=400)
        config = SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=budget, watermark_tokens=1, seconds_per_page=0.0
        )
        scheduler = Scheduler(config, blocks)
        try:
            for number in range(rng.randrange(1, 5)):
                scheduler.add(request(f"short{number}", 4, rng.randrange(4, 60), block_size))
            scheduler.add(request("long", rng.randrange(20, 150), 3, block_size))
        except NeverFits:
            pass
        run(scheduler)
        swaps += sum(
            count for (kind, _), count in scheduler.counters.preemptions.items() if kind is PreemptionKind.SWAP
        )
    assert swaps > 50


def test_what_a_rollback_keeps_counts_in_the_proof_that_a_request_fits() -> None:
    blocks = BlockManager(plan_groups((4,)), 8, 2, max_rollback=5)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=32), blocks)
    scheduler.add(request("a", 24, 4, 2))
    run(scheduler)
    tight = BlockManager(plan_groups((4,)), 4, 2, max_rollback=5)
    with pytest.raises(NeverFits):
        Scheduler(SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=32), tight).add(request("a", 24, 4, 2))
