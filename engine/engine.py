"""Engine: the step loop's body, in one process and one thread.

    submit / abort -> scheduler.schedule() -> runner.execute() -> scheduler.update() -> one StepOutput

Contains failures: a step that raises fails the requests it ran, gives their pages back and leaves the rest alone; after
``MAX_FAILED_STEPS`` in a row the engine gives up, since the device is then the likelier cause.
"""

from __future__ import annotations

import random
import sys
import time
import traceback

import msgspec

from block_manager.hashing import BlockHashes
from block_manager.prefix_index import MissReason
from engine.messages import EngineRequest, EngineStats, GroupUsage, Ledger, RequestDelta, SamplingParams, StepOutput
from engine.runner import Runner
from engine.sampler import child_seed
from scheduler.batch import ScheduledBatch
from scheduler.request import FinishReason, Request
from scheduler.scheduler import NeverFits, Scheduler, TokenOutput

MAX_FAILED_STEPS = 3


class EngineBroken(Exception):
    """Steps keep failing."""


class Engine:
    """Requests in, token deltas out, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        eos_token_ids: frozenset[int],
        page_bytes: int,
        audit_interval: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._eos_token_ids = eos_token_ids
        self._page_bytes = page_bytes
        self._audit_interval = audit_interval
        self._seeds = random.Random(seed)  # of requests that bring none, in the order they come
        self._sampling: dict[str, SamplingParams] = {}
        self._pending: list[RequestDelta] = []  # endings decided outside a step
        self._steps = 0
        self._failed_steps = 0
        self._step_seconds = 0.0
        self._audit_failures = 0

    @property
    def has_work(self) -> bool:
        return bool(self._pending) or self.scheduler.has_work

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. One that cannot run ends at once, with an error; it never reaches a step."""
        sampling = request.sampling
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=self._seeds.getrandbits(63))
        try:
            family = [self._request(request, name, sampling) for name in (request.request_id, *request.children)]
            family[0].children = family[1:]
            self.scheduler.add(family[0])
        except (NeverFits, ValueError) as error:
            self._pending += [
                RequestDelta(request_id=name, token_ids=[], finish_reason=FinishReason.ERROR, error=str(error))
                for name in (request.request_id, *request.children)
            ]
        else:
            for number, member in enumerate(family):
                seed = child_seed(sampling.seed or 0, number)
                self._sampling[member.request_id] = msgspec.structs.replace(sampling, seed=seed)

    def _request(self, request: EngineRequest, request_id: str, sampling: SamplingParams) -> Request:
        return Request(
            request_id=request_id,
            token_ids=list(request.prompt_token_ids),
            max_tokens=sampling.max_tokens,
            eos_token_ids=frozenset() if sampling.ignore_eos else self._eos_token_ids,
            stop_token_ids=frozenset(sampling.stop_token_ids),
            block_hashes=BlockHashes(self.scheduler.blocks.block_size, request.cache_salt),
            rotates=request.rotates,
        )

    def abort(self, request_ids: list[str]) -> None:
        """End these requests, in whatever state they are; ids that have ended or never were are ignored."""
        for request_id in request_ids:
            if self.scheduler.finish(request_id) is not None:
                del self._sampling[request_id]
                self._pending.append(
                    RequestDelta(request_id=request_id, token_ids=[], finish_reason=FinishReason.ABORT)
                )

    def step(self) -> StepOutput:
        """Schedule, execute, account. Raises EngineBroken when steps fail one after the other."""
        started = time.perf_counter()
        deltas, self._pending = self._pending, []
        batch = self.scheduler.schedule()
        if batch:
            deltas += self._run(batch)
            self._steps += 1
            self._step_seconds += time.perf_counter() - started
            if self._audit_interval and self._steps % self._audit_interval == 0:
                self.audit()
        return StepOutput(deltas=deltas, stats=self.stats())

    def _run(self, batch: ScheduledBatch) -> list[RequestDelta]:
        try:
            drawn = self.runner.execute(batch, self._sampling)
        except Exception as error:
            traceback.print_exc()
            self._failed_steps += 1
            # children first: a parent that leaves alone would pass the prompt that failed on to them
            names = [name for request in batch.requests for name in reversed(request.sequence_ids)]
            failed = [self._fail(name, error) for name in names]
            self.scheduler.forget_contents()
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise EngineBroken(f"{self._failed_steps} steps failed in a row; the last with: {error!r}") from error
            return failed
        self._failed_steps = 0
        outputs = self.scheduler.update(batch, {name: token.token_id for name, token in drawn.items()})
        return [self._delta(output, drawn[output.request.request_id].logprob) for output in outputs]

    def _fail(self, request_id: str, error: Exception) -> RequestDelta:
        self.scheduler.finish(request_id)
        self._sampling.pop(request_id, None)
        message = f"the step failed: {type(error).__name__}: {error}"
        return RequestDelta(request_id=request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=message)

    def _delta(self, output: TokenOutput, logprob: float) -> RequestDelta:
        request = output.request
        if output.finish_reason is not None:
            del self._sampling[request.request_id]
        named = output.finish_reason is FinishReason.STOP and output.token_id in request.stop_token_ids
        return RequestDelta(
            request_id=request.request_id,
            token_ids=[output.token_id],
            finish_reason=output.finish_reason,
            stop_token_id=output.token_id if named else None,
            num_cached_tokens=request.num_cached_tokens or 0,
            logprob=logprob,
            ledger=None if output.finish_reason is None else _ledger(request),
        )

    def audit(self) -> list[str]:
        """Account for every page; what is wrong is counted, printed with its owner, and mended where it can be.

        It would be a defect of ours: a page that leaked must not stay lost until the next restart all the same.
        """
        problems = self.scheduler.blocks.audit()
        self._audit_failures += len(problems)
        for problem in problems:
            print(f"octavo: page audit: {problem}", file=sys.stderr, flush=True)
        if problems:
            returned = self.scheduler.blocks.repair()
            print(f"octavo: page audit: {len(returned)} pages returned to the pool", file=sys.stderr, flush=True)
        return problems

    def stats(self) -> EngineStats:
        """Pages, queues and counters, now."""
        usage = self.scheduler.blocks.usage()
        counters = self.scheduler.counters
        host = self.scheduler.blocks.host
        return EngineStats(
            pages_total=usage.total,
            pages_free=usage.free,
            page_bytes=self._page_bytes,
            groups=[
                GroupUsage(
                    name=group.name,
                    cached=group.cached,
                    held=group.held,
                    bytes_held=group.held * self._page_bytes,
                    shared=group.shared,
                    evicted=group.evicted,
                    held_slots=group.held_slots,
                    wasted_slots=group.wasted_slots,
                )
                for group in usage.groups
            ],
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            oldest_cached_seconds=usage.oldest_cached_seconds,
            host_pages_total=host.num_pages,
            host_pages_free=host.free_pages,
            host_pages_swapped=host.swapped_pages,
            preemptions=counters.preemptions,
            swaps=counters.swaps,
            rotations=counters.rotations,
            prompt_tokens=counters.prompt_tokens,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            missed_prompt_tokens={reason.value: counters.missed_tokens[reason] for reason in MissReason},
            page_seconds=counters.page_seconds,
            recomputed_tokens=counters.recomputed_tokens,
            generation_tokens=counters.generation_tokens,
            steps=self._steps,
            step_seconds=self._step_seconds,
            audit_failures=self._audit_failures,
        )


def _ledger(request: Request) -> Ledger:
    ledger = request.ledger
    return Ledger(
        peak_pages=ledger.peak_pages,
        page_seconds=ledger.page_seconds,
        cached_tokens=ledger.cached_tokens,
        recomputed_tokens=ledger.recomputed_tokens,
        rotations=ledger.rotations,
        swaps=ledger.swaps,
        preempted_by=ledger.preempted_by,
    )
