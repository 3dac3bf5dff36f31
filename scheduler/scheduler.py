"""Scheduler: decides each step which requests run, from free pages and one token budget.

One rule, no phases: every running request catches up with its tokens, oldest first; then waiting requests are admitted,
unless something was preempted in this step. Where pages run short, the newest running request gives its pages back and
goes to the front of the queue with its tokens; the last one running is never preempted, because admission has proven
that it fits alone. It knows token ids and page counts; nothing of text, tensors or clients.

Invariants: a request is in exactly one of `waiting` and `running` until it finishes, or pends on its parent; it owns a
block table exactly while it is running; it finishes exactly once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from block_manager.groups import LayerGroup
from block_manager.manager import BlockManager
from block_manager.prefix_index import MissReason
from block_manager.usage import SequenceUsage
from scheduler.batch import ScheduledBatch, ScheduledRequest
from scheduler.ledger import RequestLedger
from scheduler.queue import WaitingQueue
from scheduler.request import FinishReason, Request, RequestStatus


class NeverFits(Exception):
    """The request could not run even alone in the pool."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``max_num_batched_tokens`` is the budget of a step; ``max_num_seqs`` bounds the requests that run at once.

    ``max_model_len`` is where requests that rotate do so (None: where the pool ends). ``swap_cost``: tokens that could
    be computed in the time it takes to move one page to the host and back; swapping is chosen where it is cheaper.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None = None
    swap_cost: float = 0.05


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start, in requests or tokens. A prompt token is counted once, however often it is computed.

    ``missed_tokens`` are prompt tokens that had to be computed at first admission, by the reason they were not cached.
    """

    preemptions: int = 0
    swaps: int = 0
    rotations: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    missed_tokens: Counter[MissReason] = field(default_factory=Counter)
    recomputed_tokens: int = 0
    generation_tokens: int = 0
    page_seconds: float = 0.0


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
        self._capacity = blocks.capacity(config.max_num_batched_tokens)
        self._pages_per_block = sum(group.pages_per_block for group in groups)
        longest = blocks.pool.num_pages * blocks.block_size if config.max_model_len is None else config.max_model_len
        self._rotation_limit = max(2, self._capacity.max_tokens(longest))

    # ---- requests come and go

    def add(self, request: Request) -> None:
        """Queue a request; raises NeverFits when the pool could not hold it even alone.

        The last token a request may produce is never computed, so it needs no slot. A request without a prompt or
        without an output has no step that could end it: ValueError. Children are known from here on, but run only
        when the prompt is computed.
        """
        family = [request, *request.children]
        for member in family:
            if member.request_id in self._requests:
                raise ValueError(f"request {member.request_id} is known already")
        if not request.token_ids or request.max_tokens < 1:
            raise ValueError(
                f"request {request.request_id} has {request.num_prompt_tokens} prompt tokens and max_tokens "
                f"{request.max_tokens}: at least one of each is needed"
            )
        if len(family) > self.config.max_num_seqs:
            raise NeverFits(
                f"{len(family)} sequences of one prompt, but at most {self.config.max_num_seqs} run at once"
            )
        longest = request.num_prompt_tokens + request.max_tokens - 1
        if request.rotates:
            longest = max(request.num_prompt_tokens, min(longest, self._rotation_limit))
        chunk_limit = self._capacity.largest_chunk(longest)
        if chunk_limit < 1:
            raise NeverFits(f"{longest} tokens do not fit into {self._capacity.num_pages} pages")
        request.block_hashes.extend(request.token_ids)
        for member in family:
            member.chunk_limit = chunk_limit
            self._requests[member.request_id] = member
        for child in request.children:
            child.status = RequestStatus.PENDING
        self.waiting.append(request)

    def finish(self, request_id: str) -> Request | None:
        """Take a request out in whatever state it is (abort, error); None when it is not known, or no longer."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        if request.status is RequestStatus.PENDING:
            parent = next(one for one in self._requests.values() if request in one.children)
            parent.children.remove(request)
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
            if request_id in self.blocks.swapped:
                self.blocks.drop_swapped(request_id)
        else:
            self._leave(request, self.blocks.free(request_id))
        request.status = RequestStatus.FINISHED
        self.counters.page_seconds += request.ledger.page_seconds
        if request.children:
            self._promote_child(request)
        return request

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def ledger(self, request_id: str) -> RequestLedger:
        """What a request has cost so far; KeyError when it is not known, or no longer."""
        request = self._requests[request_id]
        if request.status is not RequestStatus.RUNNING:
            return request.ledger
        return request.ledger.seen_running(self.blocks.sequence_usage(request_id))

    def forget_contents(self) -> None:
        """A step failed, perhaps while it moved pages: trust no content that no running request has computed itself."""
        self.blocks.drop_cache()
        for request in self.waiting:
            if request.request_id in self.blocks.swapped:
                self.blocks.drop_swapped(request.request_id)
                request.num_computed_tokens = 0

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
            scheduled.append(self._share(request, num_tokens))
            budget -= num_tokens
            index += 1
        while not preempted and budget:
            admitted = self._admit_next(budget)
            if admitted is None:
                break
            scheduled.append(admitted)
            budget -= admitted.num_tokens
        if not scheduled:
            return ScheduledBatch(())  # `released` and transfers wait for a batch that somebody reads
        released, self._released = tuple(self._released), []
        return ScheduledBatch(tuple(scheduled), released, self.blocks.take_transfers())

    def update(self, batch: ScheduledBatch, sampled: dict[str, int]) -> list[TokenOutput]:
        """Account for a step that ran: ``sampled`` has the next token of every sequence that draws one."""
        outputs = []
        for share in batch.requests:
            request = self._requests.get(share.request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue  # aborted while the step ran, and perhaps queued anew under its id
            self._count_computed(request, share)
            self.blocks.commit(request.request_id, request.num_computed_tokens, request.block_hashes)
            if share.samples:
                family = [request, *self._run_children(request)]
                outputs += [self._append(member, sampled[member.request_id]) for member in family]
        return outputs

    # ---- parts

    def _count_computed(self, request: Request, share: ScheduledRequest) -> None:
        reached = share.num_computed_tokens + share.num_tokens
        recomputed = max(0, min(request.high_water, reached) - share.num_computed_tokens)
        request.ledger.recomputed_tokens += recomputed
        self.counters.recomputed_tokens += recomputed
        request.num_computed_tokens = reached
        request.high_water = max(request.high_water, reached)

    def _run_children(self, parent: Request) -> list[Request]:
        """The prompt is computed: its children run from here on, right behind it, on the same pages."""
        children, parent.children = parent.children, []
        place = self.running.index(parent) + 1 if children else 0
        for child in children:
            self.blocks.fork(parent.request_id, child.request_id)
            child.block_hashes = parent.block_hashes.fork()
            child.num_computed_tokens = child.high_water = parent.num_computed_tokens
            child.num_cached_tokens = 0  # the parent's hits, counted once
            child.is_new_table = True
            child.status = RequestStatus.RUNNING
        self.running[place:place] = children
        return children

    def _promote_child(self, parent: Request) -> None:
        """The parent is gone before its prompt was computed: its first child computes it in the parent's stead."""
        heir, *rest = parent.children
        parent.children = []
        heir.children = rest
        heir.block_hashes = parent.block_hashes
        heir.status = RequestStatus.WAITING
        self.waiting.push_front(heir)

    def _append(self, request: Request, token_id: int) -> TokenOutput:
        request.token_ids.append(token_id)
        request.block_hashes.extend(request.token_ids)
        self.counters.generation_tokens += 1
        reason = request.finish_reason()
        if reason is not None:
            self.finish(request.request_id)
        elif request.rotates and request.num_tokens > self._rotation_limit:
            self._rotate(request)
        return TokenOutput(request, token_id, reason)

    def _rotate(self, request: Request) -> None:
        """Go on with the first block of tokens and the last half of the context, computed anew."""
        self._leave(request, self.blocks.free(request.request_id))
        keep_last = self._rotation_limit // 2
        request.rotate(min(self.blocks.block_size, self._rotation_limit - keep_last - 1), keep_last)
        request.status = RequestStatus.WAITING
        self.counters.rotations += 1
        self.waiting.push_front(request)

    def _share(self, request: Request, num_tokens: int) -> ScheduledRequest:
        start = request.num_computed_tokens
        admitted, request.is_new_table = request.is_new_table, False
        return ScheduledRequest(
            request_id=request.request_id,
            token_ids=request.token_ids[start : start + num_tokens],
            num_computed_tokens=start,
            samples=start + num_tokens == request.num_tokens,
            admitted=admitted,
            sequence_ids=(request.request_id, *(child.request_id for child in request.children)),
            output_index=request.num_output_tokens,
            block_tables=self.blocks.block_tables(request.request_id),
        )

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Grow ``request`` to ``num_tokens``, preempting from the newest on; True when something was preempted."""
        preempted = False
        while not self.blocks.grow(request.request_id, num_tokens):
            self._preempt(self.running[-1], request)
            preempted = True
            if request.status is not RequestStatus.RUNNING:
                break
        return preempted

    def _preempt(self, victim: Request, requester: Request) -> None:
        if len(self.running) == 1:
            raise RuntimeError(f"{victim.request_id} runs alone and is out of pages: the never-fits proof is wrong")
        pages = self.blocks.sequence_usage(victim.request_id).held_pages
        cheaper = pages * self.config.swap_cost < victim.num_computed_tokens
        swapped = self.blocks.swap_out(victim.request_id) if cheaper else None
        self._leave(victim, self.blocks.free(victim.request_id) if swapped is None else swapped)
        if swapped is not None:
            victim.ledger.swaps += 1
            self.counters.swaps += 1
        else:
            victim.num_computed_tokens = 0
        victim.status = RequestStatus.WAITING
        victim.num_preemptions += 1
        victim.ledger.preempted_by.append(requester.request_id)
        self.counters.preemptions += 1
        self.waiting.push_front(victim)

    def _leave(self, request: Request, usage: SequenceUsage) -> None:
        """It runs no more and has given its pages back."""
        self.running.remove(request)
        request.ledger.close_turn(usage)
        request.is_new_table = True
        self._released.append(request.request_id)

    def _admit_next(self, budget: int) -> ScheduledRequest | None:
        """Start the head of the queue if its tokens fit beside what the running ones still need; else None.

        Asking for room for all its tokens, not only for the first chunk, keeps a request from being admitted only to be
        preempted again before it has caught up.
        """
        request = self.waiting.head()
        if request is None or self._num_running + 1 + len(request.children) > self.config.max_num_seqs:
            return None
        if request.request_id in self.blocks.swapped:
            share = self._swap_in(request, budget)
            if share is not None or self.running:
                return share
            # nothing runs that could make room: it is computed anew, which has been proven to fit
            self.blocks.drop_swapped(request.request_id)
            request.num_computed_tokens = 0
        match = self.blocks.match_prefix(request.block_hashes, request.num_tokens)
        wanted = self.blocks.pages_to_admit(match, request.num_tokens, request.chunk_limit)
        if wanted + self._reserved_pages() > self.blocks.available_pages:
            return None
        num_tokens = min(request.num_tokens - match.num_tokens, budget, request.chunk_limit)
        if not self.blocks.admit(request.request_id, match, match.num_tokens + num_tokens):
            return None
        request.num_computed_tokens = match.num_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.ledger.cached_tokens = match.num_tokens
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.cached_prompt_tokens += match.num_tokens
            if match.miss is not None:
                self.counters.missed_tokens[match.miss] += request.num_prompt_tokens - match.num_tokens
        return self._start(request, num_tokens)

    def _swap_in(self, request: Request, budget: int) -> ScheduledRequest | None:
        wanted = self.blocks.pages_to_swap_in(request.request_id, request.num_tokens, request.chunk_limit)
        if wanted + self._reserved_pages() > self.blocks.available_pages:
            return None
        num_tokens = min(request.num_tokens - request.num_computed_tokens, budget, request.chunk_limit)
        if not self.blocks.swap_in(request.request_id, request.num_computed_tokens + num_tokens):
            return None
        return self._start(request, num_tokens)

    def _start(self, request: Request, num_tokens: int) -> ScheduledRequest:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        return self._share(request, num_tokens)

    @property
    def _num_running(self) -> int:
        """Running sequences, with the children that will run as soon as a prompt is computed."""
        return len(self.running) + sum(len(request.children) for request in self.running)

    def _reserved_pages(self) -> int:
        """Pages that running requests will take soon: to catch up, and one more block each, children included."""
        return sum(
            self.blocks.pages_to_reach(request.request_id, request.num_tokens)
            + self._pages_per_block * (1 + len(request.children))
            for request in self.running
        )
