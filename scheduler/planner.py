"""StepPlanner: which requests run in the next step, with how many tokens, and who gives way to them.

The scheduler's one rule. Running requests catch up first, in the policy's order, then waiting ones start, unless
somebody was preempted: whoever is short of pages would only be joined by others. It takes pages and moves requests
between `waiting` and `running`; what the step then does to a request is the scheduler's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from block_manager.manager import BlockManager
from block_manager.prefix_index import MissReason
from scheduler.admission import Admission, Start
from scheduler.config import SchedulerConfig
from scheduler.counters import SchedulerCounters
from scheduler.outlook import Outlook
from scheduler.policy import Policy, lowest
from scheduler.preemption import preempt
from scheduler.preemption_record import Preemption, PreemptionCause
from scheduler.queue import WaitingQueue
from scheduler.request import Request, RequestStatus, WaitReason
from scheduler.running import RunningRequests
from scheduler.step_budget import StepBudget

MAX_BLOCKED = 16  # waiting requests that are looked at in one step and cannot start
MAX_RECORDS = 1000  # preemptions that are remembered
ASSUMED_SECONDS_PER_TOKEN = 4e-4  # until a step was seen


class StepPlanner:
    """Plans over the requests of one scheduler; ``preemptions`` are the latest, oldest first."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        policy: Policy,
        counters: SchedulerCounters,
        clock: Callable[[], float],
    ) -> None:
        self.waiting = WaitingQueue(policy)
        self.running = RunningRequests(blocks)
        self.admission = Admission(config, blocks)
        self.outlook = Outlook(config, blocks, self.admission.capacity)
        self.preemptions: deque[Preemption] = deque(maxlen=MAX_RECORDS)
        self._config = config
        self._blocks = blocks
        self._policy = policy
        self._counters = counters
        self._clock = clock
        self._wait_reasons: dict[str, WaitReason] = {}  # of the latest step

    def wait_reason(self, request: Request) -> WaitReason:
        """Why a waiting request did not start in the latest step."""
        return self._wait_reasons.get(request.request_id, WaitReason.BEHIND)

    def wait_reasons(self) -> Counter[WaitReason]:
        """Waiting requests by why they did not start in the latest step."""
        return Counter(self.wait_reason(request) for request in self.waiting)

    @property
    def wanted_pages(self) -> int:
        """What the waiting request which goes next could not get in the latest step; 0 where pages were not why."""
        first = next(iter(self.waiting), None)
        if first is None or self.wait_reason(first) is not WaitReason.PAGES:
            return 0
        return first.wanted_pages

    def plan(self, *, step_is_under_way: bool) -> dict[Request, int] | None:
        """Tokens for each request of the step; their pages are taken.

        None when pages are short and a step is under way: that may end something, and until then nobody's pages can be
        taken. Pages that were taken before stay with their requests.
        """
        self._wait_reasons.clear()
        threshold = self._config.long_prefill_threshold
        needs = [request.num_tokens_to_schedule for request in self.running]
        long_runs = max(needs, default=0) > threshold
        stream_waits = step_is_under_way and any(
            need == 0 and not request.draws_ahead for request, need in zip(self.running, needs, strict=True)
        )
        budget = StepBudget(
            self._config.max_num_batched_tokens,
            needs.count(1),
            threshold,
            long_runs=long_runs,
            stream_waits=stream_waits,
        )
        plan: dict[Request, int] = {}
        preempted = False
        blocks, reserving = self._blocks, self.running.reserving
        for request, need in zip(tuple(self.running), needs, strict=True):
            if need < 1 or request.status is not RequestStatus.RUNNING:
                continue
            num_tokens = budget.decode() if need == 1 else budget.prefill(need, request.chunk_limit)
            if not num_tokens:
                continue
            target = request.num_scheduled_tokens + num_tokens
            # straight to the blocks where nothing is kept for others: this runs once for every token
            while not (self._grow(request, target) if reserving else blocks.grow(request.request_id, target)):
                if step_is_under_way:
                    return None
                victim = self._preempt_for(request, PreemptionCause.DECODE if need == 1 else PreemptionCause.PREFILL)
                plan.pop(victim, None)
                preempted = True
                if victim is request:
                    break
            else:
                plan[request] = num_tokens
        if preempted:
            self._wait_reasons.update((one.request_id, WaitReason.PREEMPTION) for one in self.waiting)
        elif self.waiting:
            self._admit(budget, plan)
        self._spend_left_over(budget, plan)
        if budget.has_left_over and self.waiting and not preempted:
            budget.open_to_long()
            self._admit(budget, plan)
        return plan

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Pages for positions below ``num_tokens``, unless they are kept for others."""
        if self.running.reserving and not request.holds_reservation:
            kept = self.admission.kept_pages(self.running.reserving)
            wanted = self._blocks.pages_to_reach(request.request_id, num_tokens)
            if wanted > max(0, self._blocks.available_pages - kept):
                return False
        return self._blocks.grow(request.request_id, num_tokens)

    def _admit(self, budget: StepBudget, plan: dict[Request, int]) -> None:
        """Start waiting requests, in order; small ones may pass a few that want more pages than there are."""
        blocked: list[Request] = []
        self.admission.begin(self.running)
        for request in self.waiting:
            if len(self._wait_reasons) == MAX_BLOCKED or self._must_not_be_passed(blocked):
                break
            if budget.prefill_left < 1:
                self._wait_reasons[request.request_id] = WaitReason.TOKENS
                break
            start = self.admission.start(request, budget)
            if isinstance(start, Start):
                self._start(request, start)
                plan[request] = start.num_tokens
                self._counters.overtakes += bool(blocked)
                for passed in blocked:
                    passed.num_overtakers += 1
            else:
                self._wait_reasons[request.request_id] = start
                if start is not WaitReason.TOKENS:
                    blocked.append(request)

    def _must_not_be_passed(self, blocked: Sequence[Request]) -> bool:
        return any(request.num_overtakers >= self._config.max_overtakes for request in blocked)

    def _start(self, request: Request, start: Start) -> None:
        self.waiting.remove(request)
        self.running.add(request)
        now = self._clock()
        request.ledger.phases.start(now)
        if request.started is None and start.match is not None:
            request.started = now
            match = start.match
            request.num_cached_tokens = request.ledger.cached_tokens = match.num_tokens
            self._counters.prompt_tokens += request.num_prompt_tokens
            self._counters.cached_prompt_tokens += match.num_tokens
            self._policy.charge(request, request.num_prompt_tokens - match.num_tokens, 0)
            miss = match.miss or MissReason.TOO_SHORT  # the rest is a block at most, the last token included
            self._counters.missed_tokens[miss] += request.num_prompt_tokens - match.num_tokens

    def _spend_left_over(self, budget: StepBudget, plan: dict[Request, int]) -> None:
        """Where nobody streams, prompts that were held short go on with what is left, as far as pages allow."""
        if not budget.has_left_over:
            return
        for request, num_tokens in plan.items():
            scheduled = request.num_scheduled_tokens + num_tokens
            to_go = min(request.num_tokens - scheduled, request.chunk_limit - num_tokens)
            granted = budget.left_over(to_go) if to_go > 0 else 0
            if granted and self._grow(request, scheduled + granted):
                plan[request] = num_tokens + granted

    def _preempt_for(self, requester: Request, cause: PreemptionCause) -> Request:
        """Take the pages of who goes last; the victim is the requester itself where all others go before it."""
        if len(self.running) == 1:
            raise RuntimeError(f"{requester.request_id} runs alone and is out of pages: the never-fits proof is wrong")
        rank = self._policy.rank(requester)
        may_take_all = requester.holds_reservation
        victim = lowest(
            self._policy,
            [one for one in self.running if one is requester or may_take_all or self._policy.rank(one) > rank],
        )
        record = preempt(
            self._blocks,
            victim,
            requester,
            cause,
            now=self._clock(),
            seconds_per_token=self.outlook.step_time.per_token or ASSUMED_SECONDS_PER_TOKEN,
            seconds_per_page=self._config.seconds_per_page,
        )
        self.running.remove_preempted(victim)
        self.preemptions.append(record)
        self._counters.preemptions[record.kind, cause] += 1
        self.waiting.add(victim)
        return victim
