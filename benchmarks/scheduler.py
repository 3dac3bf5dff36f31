"""What the scheduler costs: microseconds of `schedule()` and `update()` in a step of running decodes.

    python -m benchmarks.scheduler
    python -m benchmarks.scheduler --running 64,1024 --vllm-python ~/vllm/bin/python

All requests decode at 1,024 tokens of context, pages hold 16 tokens, prefix caching is on, one full layer group.
Thread time, so that other work on the machine counts only through its caches; medians over the steps of all rounds.
With ``--vllm-python``, an interpreter that has vLLM runs the same load through vLLM's scheduler
(`benchmarks.vllm_scheduler`), in turn with Octavo's, round by round. No model and no tensors.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import Conditions
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from scheduler.config import SchedulerConfig
from scheduler.request import Request
from scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
CONTEXT = 1024
STEPS = 200
PREFILL_STEPS = 300  # in which those whose prompts are computed decode already
RUNNING = (64, 256, 1024)
TARGET = 1 / 3
PEER_SCRIPT = Path(__file__).with_name("vllm_scheduler.py")


@dataclass(frozen=True)
class StepCost:
    """Microseconds of thread time of each half of each step."""

    schedule: tuple[float, ...]
    update: tuple[float, ...]

    def __add__(self, other: StepCost) -> StepCost:
        return StepCost(self.schedule + other.schedule, self.update + other.update)

    @property
    def step(self) -> float:
        """Median of the two together."""
        return statistics.median(one + two for one, two in zip(self.schedule, self.update, strict=True))


def decoding_scheduler(num_running: int, steps: int) -> Scheduler:
    """A scheduler with ``num_running`` requests whose prompts are computed, and pages for all of their ``steps``."""
    blocks = BlockManager(
        plan_groups([None]), num_running * ((CONTEXT + steps + PREFILL_STEPS) // BLOCK_SIZE + 4), BLOCK_SIZE
    )
    limits = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=max(8192, num_running),
        max_queued_requests=num_running,
        max_queued_tokens=sys.maxsize,
    )
    scheduler = Scheduler(limits, blocks)
    for index in range(num_running):
        request = Request(
            request_id=f"request-{index}",
            token_ids=[(index * 7919 + position) % 50_000 for position in range(CONTEXT)],
            max_tokens=steps + PREFILL_STEPS,
            eos_token_ids=frozenset([50_001]),
            stop_token_ids=frozenset(),
            block_hashes=BlockHashes(BLOCK_SIZE),
        )
        scheduler.add(request)
    while scheduler.waiting or any(request.num_output_tokens == 0 for request in scheduler.running):
        batch = scheduler.schedule()
        scheduler.update(batch, {share.request_id: 11 for share in batch.requests if share.samples})
    return scheduler


def measure(num_running: int, steps: int) -> StepCost:
    """The cost of ``steps`` steps in which every request draws one token."""
    scheduler = decoding_scheduler(num_running, steps)
    schedule, update = [], []
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        began = time.thread_time_ns()
        batch = scheduler.schedule()
        scheduled = time.thread_time_ns()
        drawn = {share.request_id: 11 for share in batch.requests}
        executed = time.thread_time_ns()
        outputs = scheduler.update(batch, drawn)
        updated = time.thread_time_ns()
        if len(outputs) != num_running:
            raise RuntimeError(f"{len(outputs)} of {num_running} requests drew a token")
        schedule.append((scheduled - began) / 1000)
        update.append((updated - executed) / 1000)
    gc.unfreeze()
    return StepCost(tuple(schedule), tuple(update))


def measure_vllm(python: str, num_running: int, steps: int) -> tuple[str, StepCost]:
    """The same load through vLLM's scheduler, in a process of its own; its version and cost."""
    command = [python, str(PEER_SCRIPT), str(num_running), str(steps), str(CONTEXT), str(BLOCK_SIZE)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"vLLM's scheduler did not run:\n{ran.stderr[-2000:]}")
    answer = json.loads(ran.stdout.splitlines()[-1])
    return answer["version"], StepCost(tuple(answer["schedule"]), tuple(answer["update"]))


def row(name: str, num_running: int, cost: StepCost, peer: StepCost | None = None) -> str:
    """One line of the table."""
    schedule, update = statistics.median(cost.schedule), statistics.median(cost.update)
    ratio = "" if peer is None else f"{cost.step / peer.step:.2f}"
    return (
        f"| {num_running:,} | {name} | {schedule / 1000:.2f} | {update / 1000:.2f} | {cost.step / 1000:.2f} "
        f"| {cost.step / num_running:.1f} | {ratio} |"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table; status 1 when vLLM was measured and the target missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", default=",".join(map(str, RUNNING)), help="numbers of running requests")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", metavar="PATH", help="interpreter of an environment that has vLLM")
    arguments = parser.parse_args(argv)
    print(Conditions.now())
    print("\n| running | scheduler | schedule, ms | update, ms | step, ms | us per request | of vLLM's |")
    print("|---|---|---|---|---|---|---|")
    missed = False
    for num_running in map(int, arguments.running.split(",")):
        cost, peer, peer_name = StepCost((), ()), StepCost((), ()), ""
        for _ in range(arguments.rounds):
            cost += measure(num_running, arguments.steps)
            if arguments.vllm_python:
                version, one = measure_vllm(arguments.vllm_python, num_running, arguments.steps)
                peer, peer_name = peer + one, f"vLLM {version}"
        if peer_name:
            print(row(peer_name, num_running, peer))
            missed |= cost.step > TARGET * peer.step
        print(row("Octavo", num_running, cost, peer if peer_name else None), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
