"""Scheduler: decides each step which requests run, from free pages and one token budget.

One rule, no phases: every running request catches up with its tokens, oldest first; then waiting requests are
admitted, unless something was preempted in this step. Where pages run short, the newest running request gives its
pages back and goes to the front of the queue with its tokens; the last one running is never preempted, because
admission has proven that it fits alone. It knows token ids and page counts; nothing of text, tensors or clients.

Invariants: a request is in exactly one of `waiting` and `running` until it finishes; it owns a block table exactly
while it is running; it finishes exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

from block_manager.groups import LayerGroup
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from scheduler.batch import ScheduledBatch, ScheduledRequest
from scheduler.queue import WaitingQueue
from scheduler.request import FinishReason, Request, RequestStatus


class NeverFits(Exception):
    """The request could not run even alone in the pool."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``max_num_batched_tokens`` is the budget of a step; ``max_num_seqs`` bounds the requests that run at once."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start, in requests or tokens. A prompt token is counted once, however often it is computed."""

    preemptions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    recomputed_tokens: int = 0
    generation_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What a step gave one request: its next token, and the reason if it ended."""

    request: Request
    token_id: int
    finish_reason: FinishReason | None


class Scheduler:
    """Continuous batching over one block manager."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        self.config = config
        self.blocks = blocks
        self.counters = SchedulerCounters()
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._released: list[str] = []
        groups: tuple[LayerGroup, ...] = blocks.groups
        self._capacity = Capacity(groups, blocks.block_size, blocks.pool.num_pages, config.max_num_batched_tokens)
        self._pages_per_block = sum(group.pages_per_block for group in groups)

    # ---- requests come and go

    def add(self, request: Request) -> None:
        """Queue a request; raises NeverFits when the pool could not hold it even alone.

        The last token a request may produce is never computed, so it needs no slot. A request without a prompt or
        without an output has no step that could end it: ValueError.
        """
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id} is known already")
        if not request.token_ids or request.max_tokens < 1:
            raise ValueError(
                f"request {request.request_id} has {request.num_prompt_tokens} prompt tokens and max_tokens "
                f"{request.max_tokens}: at least one of each is needed"
            )
        longest = request.num_prompt_tokens + request.max_tokens - 1
        request.chunk_limit = self._capacity.largest_chunk(longest)
        if request.chunk_limit < 1:
            raise NeverFits(f"{longest} tokens do not fit into {self._capacity.num_pages} pages")
        request.block_hashes.extend(request.token_ids)
        self._requests[request.request_id] = request
        self.waiting.append(request)

    def finish(self, request_id: str) -> Request | None:
        """Take a request out in whatever state it is (abort, error); None when it is not known, or no longer."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        if request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        else:
            self._release_pages(request)
        request.status = RequestStatus.FINISHED
        return request

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    # ---- one step

    def schedule(self) -> ScheduledBatch:
        """Choose this step's tokens and take the pages they need."""
        budget = self.config.max_num_batched_tokens
        scheduled: list[ScheduledRequest] = []
        preempted = False
        index = 0
        while index < len(self.running) and budget:
            request = self.running[index]
            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget, request.chunk_limit)
            preempted |= self._make_room(request, request.num_computed_tokens + num_tokens)
            if request.status is not RequestStatus.RUNNING:
                break  # it was the newest itself, so nothing is left behind it
            scheduled.append(self._share(request, num_tokens, admitted=False))
            budget -= num_tokens
            index += 1
        while not preempted and budget and len(self.running) < self.config.max_num_seqs:
            admitted = self._admit_next(budget)
            if admitted is None:
                break
            scheduled.append(admitted)
            budget -= admitted.num_tokens
        if not scheduled:
            return ScheduledBatch(())  # `released` waits for a batch that somebody reads
        released, self._released = tuple(self._released), []
        return ScheduledBatch(tuple(scheduled), released)

    def update(self, batch: ScheduledBatch, sampled: dict[str, int]) -> list[TokenOutput]:
        """Account for a step that ran: ``sampled`` has the next token of every request that samples."""
        outputs = []
        for share in batch.requests:
            request = self._requests.get(share.request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue  # aborted while the step ran, and perhaps queued anew under its id
            recomputed = (
                min(request.high_water, share.num_computed_tokens + share.num_tokens) - share.num_computed_tokens
            )
            self.counters.recomputed_tokens += max(0, recomputed)
            request.num_computed_tokens += share.num_tokens
            request.high_water = max(request.high_water, request.num_computed_tokens)
            self.blocks.commit(request.request_id, request.num_computed_tokens, request.block_hashes)
            if share.samples:
                outputs.append(self._append(request, sampled[share.request_id]))
        return outputs

    # ---- parts

    def _append(self, request: Request, token_id: int) -> TokenOutput:
        request.token_ids.append(token_id)
        request.block_hashes.extend(request.token_ids)
        self.counters.generation_tokens += 1
        reason = request.finish_reason()
        if reason is not None:
            self.finish(request.request_id)
        return TokenOutput(request, token_id, reason)

    def _share(self, request: Request, num_tokens: int, *, admitted: bool) -> ScheduledRequest:
        start = request.num_computed_tokens
        return ScheduledRequest(
            request_id=request.request_id,
            token_ids=request.token_ids[start : start + num_tokens],
            num_computed_tokens=start,
            samples=start + num_tokens == request.num_tokens,
            admitted=admitted,
            block_tables=self.blocks.block_tables(request.request_id),
        )

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Grow ``request`` to ``num_tokens``, preempting from the newest on; True when something was preempted."""
        preempted = False
        while not self.blocks.grow(request.request_id, num_tokens):
            self._preempt(self.running[-1])
            preempted = True
            if request.status is not RequestStatus.RUNNING:
                break
        return preempted

    def _preempt(self, victim: Request) -> None:
        if len(self.running) == 1:
            raise RuntimeError(f"{victim.request_id} runs alone and is out of pages: the never-fits proof is wrong")
        self._release_pages(victim)
        victim.status = RequestStatus.WAITING
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.counters.preemptions += 1
        self.waiting.push_front(victim)

    def _release_pages(self, request: Request) -> None:
        self.running.remove(request)
        self.blocks.free(request.request_id)
        self._released.append(request.request_id)

    def _admit_next(self, budget: int) -> ScheduledRequest | None:
        """Start the head of the queue if its tokens fit beside what the running ones still need; else None.

        Asking for room for all its tokens, not only for the first chunk, keeps a request from being admitted only to be
        preempted again before it has caught up.
        """
        request = self.waiting.head()
        if request is None:
            return None
        match = self.blocks.match_prefix(request.block_hashes, request.num_tokens)
        wanted = self.blocks.pages_to_admit(match, request.num_tokens, request.chunk_limit)
        if wanted + self._reserved_pages() > self.blocks.available_pages:
            return None
        num_tokens = min(request.num_tokens - match.num_tokens, budget, request.chunk_limit)
        if not self.blocks.admit(request.request_id, match, match.num_tokens + num_tokens):
            return None
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = match.num_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = match.num_tokens
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.cached_prompt_tokens += match.num_tokens
        return self._share(request, num_tokens, admitted=True)

    def _reserved_pages(self) -> int:
        """Pages that running requests will take soon: to catch up, and one more block each."""
        return sum(
            self.blocks.pages_to_reach(request.request_id, request.num_tokens) + self._pages_per_block
            for request in self.running
        )
