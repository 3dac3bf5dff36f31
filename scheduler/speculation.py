"""Speculation: tokens that a step computes on the chance that they will be drawn, so that one step yields several.

A running request that has caught up has one token to compute. Behind it go *drafts*: the tokens that followed the last
few ones earlier in its own text (`NgramIndex`). The step draws a token at each of these positions, as it would without
drafts, and those drafts that are what was drawn before them stand (Leviathan et al., "Fast inference from transformers
via speculative decoding", 2023). What a request gets is the same with drafts and without; only when it gets it differs.

Drafts take what a planned step leaves over, and nobody is worse off for their pages: they take tokens of the budget
that nobody wants and pages with nothing in them, which go back after the step; they evict and preempt nobody. What they
do cost is time of the step, so that each must be worth it:

    a step of n requests takes T seconds, and c more for each further token: n requests wait for c, one may be ahead by
    a token, which would have taken T. So a draft token pays while its chance to be right is above  n * c / T.

T and c are fitted to the steps of late that computed answers only, as long as some of them had drafts. In a large
batch T nears n * c: no draft pays.

Invariants: a draft holds no token that would end its request, so that an accepted one never does; drafts end before
the request's longest length, its chunk limit, and the end of its ``max_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping

from block_manager.manager import BlockManager
from scheduler.admission import Admission
from scheduler.batch import ScheduledBatch, ScheduledRequest
from scheduler.config import SchedulerConfig
from scheduler.counters import SchedulerCounters
from scheduler.draft_length import MOST_ACCEPTANCE, DraftLength
from scheduler.ngram_index import NgramIndex
from scheduler.request import Request
from scheduler.running import RunningRequests
from scheduler.step_time import StepTime

ASSUMED_COST = 0.1  # of a token more, in steps of one token, while it is not known
NUM_STEPS_TO_KNOW = 16  # with drafts, before their cost is taken from the fit
NUM_STEPS_TO_FORGET = 512  # without drafts: steps that are all alike say nothing of a token more
MIN_DRAWS = 16  # a step may draw so many tokens even where fewer sequences may run


class Drafter:
    """What one request's guesses are made from."""

    __slots__ = ("index", "length", "num_dropped_tokens")

    def __init__(self, num_dropped_tokens: int) -> None:
        self.index = NgramIndex()
        self.length = DraftLength()
        self.num_dropped_tokens = num_dropped_tokens  # of the text that the index is of


class Speculation:
    """Of one scheduler, up to ``config.num_speculative_tokens`` drafts a request. Steps must not overlap."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        running: RunningRequests,
        admission: Admission,
        counters: SchedulerCounters,
    ) -> None:
        self._config = config
        self._blocks = blocks
        self._running = running
        self._admission = admission
        self._counters = counters
        self._drafters: dict[Request, Drafter] = {}
        self._step_time = StepTime()  # of steps that computed answers only
        self._num_draft_steps = 0
        self._num_steps_since = 0  # the last one with drafts

    # ---- before a step

    def draft(self, plan: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Drafts for the requests of a planned step; the pages of their positions are taken."""
        drafts: dict[Request, list[int]] = {}
        num_tokens = sum(plan.values())
        cost = self.cost(len(plan), num_tokens)
        if cost >= MOST_ACCEPTANCE:
            return drafts
        room = self._config.max_num_batched_tokens - num_tokens
        num_draws = sum(len(request.family) for request in plan)
        room = min(room, max(self._config.max_num_seqs, MIN_DRAWS) - num_draws)
        for request in plan:
            if room < 1:
                break
            limit = min(room, self._most(request, plan[request]))
            if limit > 0:
                draft = self._grown(request, self._guess(request, limit, cost))
                if draft:
                    drafts[request] = draft
                    room -= len(draft)
        return drafts

    def cost(self, num_requests: int, num_tokens: int) -> float:
        """What one draft token costs in a step of so many requests and tokens, of what a right one brings."""
        seconds = self._step_time.seconds(num_tokens)
        if self._num_draft_steps < NUM_STEPS_TO_KNOW or seconds <= 0.0:
            return ASSUMED_COST * num_requests / (1.0 + ASSUMED_COST * (num_tokens - 1))
        return self._step_time.per_token * num_requests / seconds

    def _most(self, request: Request, num_tokens: int) -> int:
        """Tokens that could stand behind the one that the request computes in this step."""
        if num_tokens != 1 or request.children or not request.speculates:
            return 0
        known = request.num_tokens
        if request.num_scheduled_tokens + 1 != known:
            return 0  # a prompt's tokens, not the newest: nothing is drawn
        return min(
            self._config.num_speculative_tokens,
            (min(request.longest, self._admission.rotation_limit) if request.rotates else request.longest) - known,
            request.chunk_limit - 1,
            request.max_tokens - request.num_output_tokens - 1,
        )

    def _guess(self, request: Request, limit: int, cost: float) -> list[int]:
        drafter = self._drafters.get(request)
        if drafter is None or drafter.num_dropped_tokens != request.num_dropped_tokens:
            drafter = self._drafters[request] = Drafter(request.num_dropped_tokens)
        draft = drafter.index.propose(request.token_ids, limit)
        for place, token_id in enumerate(draft):
            if token_id in request.eos_token_ids or token_id in request.stop_token_ids:
                del draft[place:]
                break
        return draft[: drafter.length.choose(len(draft), cost)] if draft else draft

    def _grown(self, request: Request, draft: list[int]) -> list[int]:
        """As much of the draft as there are pages for that nothing is in."""
        if not draft:
            return draft
        name, known = request.request_id, request.num_tokens
        wanted = self._blocks.pages_to_reach(name, known + len(draft))
        if wanted > self._free_pages():
            del draft[-known % self._blocks.block_size :]  # what fits the block that the newest token lies in
        if draft and not self._blocks.grow(name, known + len(draft)):
            raise RuntimeError(f"{name} finds no pages for its drafts, though they are free")
        return draft

    def _free_pages(self) -> int:
        free = self._blocks.pool.free_pages
        return free - self._admission.kept_pages(self._running.reserving) if self._running.reserving else free

    # ---- after it

    def observe(self, batch: ScheduledBatch, seconds: float) -> None:
        """A step took so many seconds."""
        if all(share.samples and len(share.token_ids) == 1 + share.num_drafts for share in batch.requests):
            self._step_time.observe(batch.num_tokens, seconds)
            if any(share.num_drafts for share in batch.requests):
                self._num_draft_steps += 1
                self._num_steps_since = 0
            else:
                self._num_steps_since += 1
                if self._num_steps_since == NUM_STEPS_TO_FORGET:
                    self._num_draft_steps = 0

    def accept(self, request: Request, share: ScheduledRequest, num_accepted: int) -> tuple[int, ...]:
        """The first ``num_accepted`` drafts of a share stand: they are the request's own from here on; returns them.

        To be called before blocks that they fill are committed.
        """
        num_drafts, accepted = share.num_drafts, tuple(share.drafts[:num_accepted])
        request.token_ids += accepted
        request.block_hashes.extend(request.token_ids)
        request.num_scheduled_tokens += num_accepted
        self._counters.drafts += 1
        self._counters.draft_tokens += num_drafts
        self._counters.accepted_draft_tokens += num_accepted
        request.ledger.draft_tokens += num_drafts
        request.ledger.accepted_draft_tokens += num_accepted
        self._drafters[request].length.observe(num_drafts, num_accepted)
        return accepted

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._drafters.pop(request, None)
