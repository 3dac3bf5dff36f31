"""How much KV memory holds nothing: a trace of requests through the real scheduler and block manager, without a model.

    python -m benchmarks.page_waste
    python -m benchmarks.page_waste --requests 500 --pages 1024

Lengths are log-normal, with a mean of about 300 tokens in and 200 out. Sampled at every step. "Max-length reservation"
is the same memory cut into slots of the longest context, one per request, as servers did before paging.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from block_manager.groups import layers_per_page, plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from scheduler.config import SchedulerConfig
from scheduler.request import Request
from scheduler.scheduler import Scheduler

SEED = 1
BLOCK_SIZE = 16
MEAN_INPUT, MEAN_OUTPUT, SIGMA = 300, 200, 0.8
LONGEST = 2_048
"""Longest context of the trace, and so the slot of a max-length reservation."""

GEMMA3_270M: tuple[int | None, ...] = tuple(None if (layer + 1) % 6 == 0 else 512 for layer in range(18))
CONTEXT = 8_192


@dataclass(frozen=True)
class WasteReport:
    """Shares are 0 to 1. ``running`` is the mean number of requests at once, ``reserved`` what slots would allow."""

    requests: int
    mean_input: float
    mean_output: float
    steps: int
    preemptions: int
    waste: float
    worst_waste: float
    stranded_pages: int
    running: float
    reserved: int

    @property
    def capacity_ratio(self) -> float:
        return self.running / self.reserved


def lengths(count: int) -> list[tuple[int, int]]:
    """(tokens in, tokens out) of ``count`` requests; always the same."""
    source = random.Random(SEED)

    def draw(mean: int, most: int) -> int:
        return min(most, max(1, round(source.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA))))

    return [(draw(MEAN_INPUT, LONGEST // 2), draw(MEAN_OUTPUT, LONGEST // 2)) for _ in range(count)]


def run_trace(count: int, num_pages: int, windows: Sequence[int | None] = (None,)) -> WasteReport:
    """Queue ``count`` requests at once, run them all, and look at the pages after every step while some still wait.

    What runs after the last was admitted says nothing about capacity, so it is not sampled.
    """
    trace = lengths(count)
    blocks = BlockManager(plan_groups(windows), num_pages, BLOCK_SIZE)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=4_096, max_num_batched_tokens=8_192, max_queued_requests=count, max_queued_tokens=sys.maxsize
        ),
        blocks,
    )
    for index, (num_input, num_output) in enumerate(trace):
        request = Request(
            request_id=str(index),
            token_ids=[index + 1] * num_input,
            max_tokens=num_output,
            eos_token_ids=frozenset(),
            stop_token_ids=frozenset(),
            block_hashes=BlockHashes(BLOCK_SIZE, salt=str(index)),
        )
        scheduler.add(request)
    wasted = held = running = steps = stranded = 0
    worst = 0.0
    while scheduler.has_work:
        batch = scheduler.schedule()
        if not batch:
            raise RuntimeError("nothing can run")
        sampling = bool(scheduler.waiting)
        scheduler.update(batch, {share.request_id: 0 for share in batch.requests if share.samples})
        if sampling:
            usage = blocks.usage()
            wasted += sum(group.wasted_slots for group in usage.groups)
            held += sum(group.held_slots for group in usage.groups)
            worst = max(worst, usage.waste)
            stranded = max(stranded, usage.total - usage.held - blocks.available_pages)
            running += len(scheduler.running)
            steps += 1
    return WasteReport(
        requests=count,
        mean_input=sum(num_input for num_input, _ in trace) / count,
        mean_output=sum(num_output for _, num_output in trace) / count,
        steps=steps,
        preemptions=scheduler.counters.num_preemptions,
        waste=wasted / held,
        worst_waste=worst,
        stranded_pages=stranded,
        running=running / steps,
        reserved=num_pages * BLOCK_SIZE // LONGEST,
    )


def hybrid_capacity(windows: Sequence[int | None] = GEMMA3_270M, context: int = CONTEXT) -> float:
    """Sequences of ``context`` tokens that fit, over what fits when every layer keeps every position."""

    def memory(windows: Sequence[int | None]) -> int:
        """What a decoding sequence holds, in blocks of one layer."""
        groups = plan_groups(windows)
        return Capacity(groups, BLOCK_SIZE, 0, 1).peak_pages(context, 1) * layers_per_page(groups)

    return memory([None] * len(windows)) / memory(windows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_waste", description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=2_000, help="requests of the trace (%(default)s)")
    parser.add_argument("--pages", type=int, default=4_096, help="pages of 16 tokens, one layer group (%(default)s)")
    options = parser.parse_args(arguments)
    report = run_trace(options.requests, options.pages)
    print(
        f"{report.requests:,} requests, log-normal (sigma {SIGMA}, seed {SEED}), mean {report.mean_input:.0f} tokens "
        f"in and {report.mean_output:.0f} out, at most {LONGEST:,} together\n"
        f"{options.pages:,} pages of {BLOCK_SIZE} tokens, sampled at {report.steps:,} steps while requests wait, "
        f"{report.preemptions:,} preemptions\n\n"
        "| | measured | target |\n|---|---|---|\n"
        f"| internal waste, share of held slots | {report.waste:.2%} (worst step {report.worst_waste:.2%}) | < 4 % |\n"
        f"| external fragmentation, pages neither held nor available | {report.stranded_pages} | 0 |\n"
        f"| requests at once, against {report.reserved} by max-length reservation of the same memory "
        f"| {report.running:.1f} ({report.capacity_ratio:.1f}x) | 2x to 4x |\n"
        f"| sequences of {CONTEXT:,} tokens of Gemma 3 270M, against all layers full | {hybrid_capacity():.2f}x "
        "| about 4x or more |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
