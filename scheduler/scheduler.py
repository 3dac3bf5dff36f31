"""Scheduler: decides each step which requests run, from free pages and one token budget.

One rule, no phases: every running request catches up with its tokens, in the policy's order; then waiting requests are
admitted, unless something was preempted in this step (`StepPlanner`). Where pages run short, the running request that
goes last in the policy's order gives its pages back and waits again with its tokens; the only one running is never
preempted, because admission has proven that it fits alone. It knows token ids and page counts; nothing of text, tensors
or clients.

A step can be scheduled while the one before it runs: tokens that are not known yet are expected (see `Request`), and
nothing is preempted, since its pages are still being read.

Invariants: a request is in exactly one of `waiting` and `running` until it finishes, or pends on its parent; it owns a
block table while it is running, and after its end until no step under way reads it; it finishes exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from block_manager.manager import BlockManager
from scheduler.batch import PLACEHOLDER, ScheduledBatch, ScheduledRequest
from scheduler.config import SchedulerConfig
from scheduler.counters import SchedulerCounters
from scheduler.deadlines import Deadlines
from scheduler.explanation import Explanation
from scheduler.ledger import RequestLedger
from scheduler.output import TokenOutput
from scheduler.planner import StepPlanner
from scheduler.policy import FirstComeFirstServed, Policy
from scheduler.refusal import Refusal, RefusalReason
from scheduler.request import FinishReason, Request, RequestStatus
from scheduler.speculation import Speculation

NO_DRAFTS: Mapping[str, int] = {}


class Scheduler:
    """Continuous batching over one block manager; times are on ``clock``, in seconds."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        policy: Policy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.blocks = blocks
        self.policy = policy or FirstComeFirstServed()
        self.counters = SchedulerCounters()
        self.planner = StepPlanner(config, blocks, self.policy, self.counters, clock)
        self.waiting = self.planner.waiting
        self.running = self.planner.running
        self.outlook = self.planner.outlook
        self._admission = self.planner.admission
        self.speculation = (
            Speculation(config, blocks, self.running, self._admission, self.counters)
            if config.num_speculative_tokens
            else None
        )
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._arrivals: list[Request] = []  # since the latest step
        self._deadlines = Deadlines()
        self._refusals: list[Refusal] = []
        self._block_size = blocks.block_size
        self._orders = count()
        self._steps_under_way = 0

    # ---- requests come and go

    def add(self, request: Request, arrived: float | None = None) -> None:
        """Queue a request; raises NeverFits when the pool could not hold it even alone.

        A request without a prompt has no step that could end it: ValueError. Children are known from here on, but run
        only when the prompt is computed. When the queue is full, the next step refuses the request (see
        `take_refusals`). ``arrived``: when it did, where that was not now.
        """
        for member in request.family:
            if member.request_id in self._requests:
                raise ValueError(f"request {member.request_id} is known already")
        if not request.token_ids or request.max_tokens < 0:
            raise ValueError(
                f"request {request.request_id} has {request.num_prompt_tokens} prompt tokens, of which at least one is "
                f"needed, and max_tokens {request.max_tokens}, which must not be negative"
            )
        self._admission.prove(request)
        request.block_hashes.extend(request.token_ids)
        now = self._clock() if arrived is None else arrived
        for member in request.family:
            member.arrived = member.ledger.phases.arrived = now
            member.order = next(self._orders)
            member.lane, member.key = self.policy.lane(member), self.policy.key(member)
            self.policy.enter(member)
            self._requests[member.request_id] = member
            self._deadlines.set(member)
        for child in request.children:
            child.status, child.parent = RequestStatus.PENDING, request
        self.waiting.add(request)
        self._arrivals.append(request)

    def finish(self, request_id: str) -> Request | None:
        """Take a request out in whatever state it is (abort, error); None when it is not known, or no longer."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        if request.status is RequestStatus.PENDING:
            assert request.parent is not None
            request.parent.children.remove(request)
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
            if request_id in self.blocks.swapped:
                self.blocks.drop_swapped(request_id)
        else:
            self.running.remove(request)
        request.status = RequestStatus.FINISHED
        if self.speculation is not None:
            self.speculation.forget(request)
        self.policy.leave(request)
        request.ledger.phases.ended = self._clock()
        self.counters.count_page_seconds(request.tenant, request.ledger.page_seconds)
        if request.children:
            self._promote_child(request)
        return request

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def take_refusals(self) -> list[Refusal]:
        """Requests that the scheduler itself ended since the last call: the queue was full, or their time over."""
        refusals, self._refusals = self._refusals, []
        return refusals

    # ---- what there is to know

    def ledger(self, request_id: str) -> RequestLedger:
        """What a request has cost so far; KeyError when it is not known, or no longer."""
        request = self._requests[request_id]
        if request.status is not RequestStatus.RUNNING:
            return request.ledger
        return request.ledger.seen_running(self.blocks.sequence_usage(request_id))

    def tenant_page_seconds(self) -> dict[str, float]:
        """Pages x seconds up to now, by tenant: those of requests that ended, and of those there are."""
        seconds = dict(self.counters.tenant_page_seconds)
        for request_id, request in self._requests.items():
            seconds[request.tenant] = seconds.get(request.tenant, 0.0) + self.ledger(request_id).page_seconds
        return seconds

    def explain(self, request_id: str) -> Explanation | None:
        """Why a request waits, or was preempted; None when it is not known, or no longer."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        position = next((place for place, one in enumerate(self.waiting.expected(), 1) if one is request), None)
        start = None
        if position is not None and self.outlook.step_time.is_known:
            start = self.outlook.starts(self.running, self.waiting.expected(), position)[-1]
        return Explanation.of(
            request,
            seconds_since_arrival=self._clock() - request.arrived,
            position=position,
            expected_start_seconds=start,
            wait_reason=None if position is None else self.planner.wait_reason(request),
            available_pages=self.blocks.available_pages,
        )

    def now(self) -> float:
        """The time on the clock that requests' times are on."""
        return self._clock()

    @property
    def num_sequences(self) -> int:
        """That run, wait or pend."""
        return len(self._requests)

    @property
    def longest_wait_seconds(self) -> float:
        """Since the arrival of the waiting request that arrived first; 0 when none waits."""
        return max((self._clock() - request.arrived for request in self.waiting), default=0.0)

    # ---- one step

    def schedule(self) -> ScheduledBatch:
        """Choose this step's tokens and take the pages they need.

        Empty when nothing can run, or not before a step that is under way has ended.
        """
        self._refuse_expired()
        plan = self.planner.plan(step_is_under_way=self._steps_under_way > 0)
        if plan is not None:
            self._refuse_overflow()
        if not plan:
            return ScheduledBatch(())  # what was released, and transfers, wait for a batch that somebody reads
        self._steps_under_way += 1
        drafts = self.speculation.draft(plan) if self.speculation is not None else {}
        shares = tuple([self._share(one, num_tokens, drafts.get(one, ())) for one, num_tokens in plan.items()])
        return ScheduledBatch(shares, self.running.take_released(), self.blocks.take_transfers())

    def update(
        self, batch: ScheduledBatch, sampled: dict[str, int], num_accepted: Mapping[str, int] = NO_DRAFTS
    ) -> list[TokenOutput]:
        """Account for a step that ran: ``sampled`` has the next token of every sequence that draws one.

        Where ``num_accepted`` has a request, so many of its drafts stand, and its next token comes behind them. A
        request with ``max_tokens`` 0 ends with its prompt.
        """
        self._steps_under_way -= 1
        now = self._clock()
        outputs = []
        for share in batch.requests:
            request = self._settle(share)
            if request is None:
                continue
            accepted: tuple[int, ...] = ()
            if self.speculation is not None and share.num_drafts:
                accepted = self.speculation.accept(request, share, num_accepted.get(share.request_id, 0))
            self._count_computed(request, share, len(accepted))
            self.blocks.commit(share.request_id, request.num_computed_tokens, request.block_hashes)
            if len(accepted) < share.num_drafts:
                self.blocks.rollback(share.request_id, request.num_computed_tokens)
            if share.samples:
                # children take their share of the pages first: the token may be the parent's last
                children = self._run_children(request) if request.children else ()
                outputs.append(self._append(request, now, sampled[share.request_id], accepted))
                for child in children:
                    outputs.append(self._append(child, now, sampled[child.request_id]))
                self.counters.generation_tokens += len(accepted) + 1 + len(children)
            elif request.max_tokens == 0 and request.num_computed_tokens == request.num_prompt_tokens:
                outputs += self._end_unanswered(request)
        return outputs

    def observe(self, batch: ScheduledBatch, seconds: float) -> None:
        """A step took so long; estimates learn from it."""
        self.outlook.step_time.observe(batch.num_tokens, seconds)
        if self.speculation is not None:
            self.speculation.observe(batch, seconds)

    def fail(self, batch: ScheduledBatch) -> list[Request]:
        """Account for a step that failed, perhaps while it moved pages; the requests it ended.

        No content is trusted any more: other requests, whose pages may be among those to be moved, begin anew.
        """
        self._steps_under_way -= 1
        ended: list[Request] = []
        for share in batch.requests:
            if self._settle(share) is not None:
                # children first: a parent that leaves alone would pass the prompt that failed on to them
                family = [self.finish(name) for name in reversed(share.sequence_ids)]
                ended += [request for request in family if request is not None]
        for request in tuple(self.running):
            self.running.remove(request)
            request.restart(0)
            self.waiting.add(request)
        for name in tuple(self.blocks.swapped):
            self.blocks.drop_swapped(name)
            self.waiting.remove(self._requests[name])
            self._requests[name].restart(0)
            self.waiting.add(self._requests[name])
        self.blocks.drop_cache()
        return ended

    # ---- what it does

    def is_current(self, share: ScheduledRequest) -> bool:
        """Whether the request of a share still runs, in the turn that the share is of."""
        request = self._requests.get(share.request_id)
        return request is not None and request.turn == share.turn and request.status is RequestStatus.RUNNING

    def _settle(self, share: ScheduledRequest) -> Request | None:
        """A step with this share is over; its request, unless that has stopped running since it was scheduled."""
        if not self.is_current(share):
            self.running.settle(share.turn)
            return None
        request = self._requests[share.request_id]
        request.num_steps_under_way -= 1
        return request

    def _share(self, request: Request, num_tokens: int, drafts: Sequence[int]) -> ScheduledRequest:
        start = request.num_scheduled_tokens
        end = start + num_tokens
        token_ids = request.token_ids[start:end]
        if len(token_ids) < num_tokens:
            token_ids.append(PLACEHOLDER)
        admitted, request.is_new_table = request.is_new_table, False
        samples = end == request.num_expected_tokens and request.max_tokens > 0
        drawn = request.num_expected_tokens + request.num_dropped_tokens - request.num_prompt_tokens
        request.num_scheduled_tokens = end  # drafts may fail, so they count when they stand
        request.num_steps_under_way += 1
        name = request.request_id
        names = request.own_ids
        if request.children:
            names = (name, *(child.request_id for child in request.children))
        elif samples:
            request.num_expected_tokens += 1  # with children it goes on when they have their share of its pages
        new_blocks = self.blocks.take_changed_blocks(name)
        token_ids += drafts
        return ScheduledRequest(
            name,
            request.turn,
            token_ids,
            start,
            samples,
            admitted,
            names,
            drawn,
            new_blocks,
            len(drafts),
            request.adapter,
        )

    def _count_computed(self, request: Request, share: ScheduledRequest, num_accepted: int) -> None:
        start, num_tokens = share.num_computed_tokens, len(share.token_ids) - share.num_drafts + num_accepted
        self.counters.recomputed_tokens += request.advance(start, start + num_tokens)
        if share.samples and self.policy.charges:
            self.policy.charge(request, 0, len(share.sequence_ids) + num_accepted)

    def _append(self, request: Request, now: float, token_id: int, accepted: tuple[int, ...] = ()) -> TokenOutput:
        phases = request.ledger.phases
        if phases.first_token is None:
            phases.first_token = now
        request.token_ids.append(token_id)
        num_tokens = len(request.token_ids)
        if num_tokens > request.num_expected_tokens:
            request.num_expected_tokens = num_tokens
        if not num_tokens % self._block_size:
            request.block_hashes.extend(request.token_ids)
        reason = request.finish_reason(token_id)
        if reason is not None:
            self.outlook.answer_length.observe(request.num_output_tokens, request.max_tokens)
            self.finish(request.request_id)
        elif request.rotates and num_tokens > self._admission.rotation_limit:
            self._rotate(request)
        return TokenOutput(request, token_id, reason, accepted)

    def _end_unanswered(self, request: Request) -> list[TokenOutput]:
        """The prompt is computed, and that was all that was wanted, for the samples of it as well."""
        family = request.family
        for member in reversed(family):  # children first: they are not to compute it again
            self.finish(member.request_id)
        return [TokenOutput(member, None, FinishReason.LENGTH) for member in family]

    def _run_children(self, parent: Request) -> list[Request]:
        """The prompt is computed: its children run from here on, behind it, on the same pages."""
        children, parent.children = parent.children, []
        for child in children:
            self.blocks.fork(parent.request_id, child.request_id)
            child.block_hashes = parent.block_hashes.fork()
            child.restart(parent.num_computed_tokens)
            child.high_water = parent.num_computed_tokens
            child.started = parent.started
            child.ledger.phases.started = parent.ledger.phases.started
            child.num_cached_tokens = 0  # the parent's hits, counted once
            self.running.add(child)
        return children

    def _promote_child(self, parent: Request) -> None:
        """The parent is gone before its prompt was computed: its first child computes it in the parent's stead."""
        heir, *rest = parent.children
        parent.children, heir.children = [], rest
        for child in rest:
            child.parent = heir
        heir.block_hashes = parent.block_hashes
        # its prompt is the same, and has been counted already where it had begun
        heir.high_water, heir.num_cached_tokens = parent.high_water, parent.num_cached_tokens
        heir.started, heir.parent = parent.started, None
        self.waiting.add(heir)

    def _rotate(self, request: Request) -> None:
        """Go on with the first block of tokens and the last half of the context, computed anew."""
        self.running.remove(request)
        keep_last = self._admission.rotation_limit // 2
        keep_first = min(self.blocks.block_size, self._admission.rotation_limit - keep_last - 1)
        request.rotate(keep_first, keep_last)
        self.counters.rotations += 1
        self.waiting.add(request)

    # ---- refusals

    def _refuse_expired(self) -> None:
        for request_id, order, reason in self._deadlines.take_passed(self._clock()):
            request = self._requests.get(request_id)
            if request is None or request.order != order:
                continue
            if reason is RefusalReason.TIMEOUT:
                self._refuse(request, reason, f"the timeout of {request.timeout:g} s is over")
            elif (request.parent or request).started is None:  # a prompt that has begun has begun for all samples
                self._refuse(request, reason, f"waited for {request.queue_timeout:g} s without a chance to start")

    def _refuse_overflow(self) -> None:
        """The bounds of the queue hold for what is left after a step has admitted what it could.

        As many go as came, those that would start last; so nobody keeps others out by filling the queue.
        """
        arrivals, self._arrivals = self._arrivals, []
        if not self._is_queue_over():
            return
        newcomers = [one for one in arrivals if one.status is RequestStatus.WAITING and one.started is None]
        in_order = list(self.waiting.expected())
        starts = self.outlook.starts(self.running, in_order, max(1, self.config.max_queued_requests))
        last = [one for one in in_order if one.started is None][-len(newcomers) :] if newcomers else []
        num_before = 0
        for request in (*reversed(last), *reversed(newcomers)):
            if not self._is_queue_over():
                break
            if request.status is RequestStatus.WAITING:
                seconds = self.outlook.retry_after(starts, num_before)
                message = (
                    f"the queue is full: at most {self.config.max_queued_requests} requests, with "
                    f"{self.config.max_queued_tokens} tokens to compute, may wait; try again in {seconds:.0f} s"
                )
                self._refuse(request, RefusalReason.QUEUE_FULL, message, seconds)
                num_before += 1

    def _is_queue_over(self) -> bool:
        too_many_tokens = self.waiting.num_tokens > self.config.max_queued_tokens and len(self.waiting) > 1
        return too_many_tokens or len(self.waiting) > self.config.max_queued_requests

    def _refuse(self, request: Request, reason: RefusalReason, message: str, retry_after: float | None = None) -> None:
        """End a request, and those that pend on it; what ended by itself meanwhile is not refused."""
        for member in reversed(request.family):
            self.finish(member.request_id)
            self.counters.refusals[reason] += 1
            started = member.started is not None
            ledger = None if reason is RefusalReason.QUEUE_FULL else member.ledger
            self._refusals.append(Refusal(member.request_id, reason, message, started, retry_after, ledger))
