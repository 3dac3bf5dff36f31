"""Admission: whether a request can ever run, and whether it may start now.

The first is a proof, by the allocator's own arithmetic, given before the request is queued. The second asks for all the
tokens a request has, beside what the running ones still need to catch up and ``watermark_tokens`` more for each, so
that nobody is admitted only to be preempted again before he has got anywhere. Where nothing runs, the proof alone is
enough: what was accepted always starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from block_manager.manager import BlockManager
from block_manager.prefix_index import MissReason
from block_manager.prefix_match import PrefixMatch
from scheduler.config import SchedulerConfig
from scheduler.refusal import NeverFits
from scheduler.request import Request, WaitReason
from scheduler.running import RunningRequests
from scheduler.step_budget import StepBudget

PREEMPTIONS_BEFORE_RESERVATION = 2
RESERVED_TOKENS = 256  # of growth, after the second preemption; twice as many after each further one


class Start(NamedTuple):
    """A request starts with ``num_tokens`` tokens, behind the prefix ``match``; None where it was swapped in."""

    num_tokens: int
    match: PrefixMatch | None


class Admission:
    """The door of one scheduler. Call `begin` before the `start`s of a step."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        self._config = config
        self._blocks = blocks
        self.capacity = blocks.capacity(config.max_num_batched_tokens)
        longest = blocks.pool.num_pages * blocks.block_size if config.max_model_len is None else config.max_model_len
        self.rotation_limit = max(2, self.capacity.max_tokens(longest))
        self._pages_per_block = sum(group.pages_per_block for group in blocks.groups)
        self._child_pages = self._pages_per_block * (1 + config.watermark_tokens // blocks.block_size)
        self._running = RunningRequests(blocks)
        self._places = 0
        self._headroom: int | None = None
        self._most_headroom: int | None = None  # a bound that is cheap

    # ---- ever

    def prove(self, request: Request) -> None:
        """Set the limits within which ``request`` fits the pool alone; NeverFits when there are none.

        The last token a request may produce is never computed, so it needs no slot.
        """
        if len(request.family) > self._config.max_num_seqs:
            raise NeverFits(
                f"{len(request.family)} sequences of one prompt, but at most {self._config.max_num_seqs} run at once"
            )
        longest = request.num_prompt_tokens + max(request.max_tokens - 1, 0)
        if request.rotates:
            longest = max(request.num_prompt_tokens, min(longest, self.rotation_limit))
        chunk_limit = self.capacity.largest_chunk(longest)
        if chunk_limit < 1:
            raise NeverFits(f"{longest} tokens do not fit into {self.capacity.num_pages} pages")
        for member in request.family:
            member.longest, member.chunk_limit = longest, chunk_limit

    # ---- now

    def begin(self, running: RunningRequests) -> None:
        """A step begins to admit, beside ``running``, a live view."""
        self._running = running
        num_sequences = sum([len(request.family) for request in running])
        self._places = self._config.max_num_seqs - num_sequences
        self._headroom = None
        # each takes no more than its watermark, a block that it ends in and one that is copied; exact where it matters
        blocks = num_sequences * (self._config.watermark_tokens // self._blocks.block_size + 3)
        blocks += sum([request.num_tokens_to_schedule for request in running]) // self._blocks.block_size
        self._most_headroom = None if running.reserving else blocks * self._pages_per_block

    def start(self, request: Request, budget: StepBudget) -> Start | WaitReason:
        """Open the table of ``request`` for its first tokens, or say why it has to wait."""
        if len(request.family) > self._places:
            return WaitReason.SEQUENCES
        if request.request_id in self._blocks.sequences:
            return WaitReason.PAGES  # of an earlier request of that name, whose last step is under way
        if request.request_id in self._blocks.swapped:
            start = self._swap_in(request, budget)
            if start is WaitReason.PAGES and not self._blocks.sequences:
                # nothing runs that could make room: it is computed anew, which has been proven to fit
                self._blocks.drop_swapped(request.request_id)
                request.restart(0)
                start = self._open(request, budget)
        else:
            start = self._open(request, budget)
        if isinstance(start, Start):
            self._places -= len(request.family)
            growth = self._pages_to_grow(request)
            if self._headroom is not None:
                self._headroom += growth
            if self._most_headroom is not None:
                self._most_headroom += growth
        return start

    def kept_pages(self, reserving: Iterable[Request]) -> int:
        """Pages that are available and kept for running requests with a reservation."""
        return sum(
            self._blocks.pages_to_grow(request.request_id, request.reserved_tokens, request.chunk_limit)
            for request in reserving
            if request.holds_reservation
        )

    # ---- parts

    def _open(self, request: Request, budget: StepBudget) -> Start | WaitReason:
        match = self._find_prefix(request)
        self._reserve(request)
        wanted = self._blocks.pages_to_admit(match, self._target(request), request.chunk_limit)
        if not self._has_room(request, wanted):
            return WaitReason.PAGES
        num_tokens = budget.prefill(request.num_tokens - match.num_tokens, request.chunk_limit)
        if not num_tokens:
            return WaitReason.TOKENS
        if not self._blocks.admit(request.request_id, match, match.num_tokens + num_tokens):
            return WaitReason.PAGES
        request.restart(match.num_tokens)
        return Start(num_tokens, match)

    def _find_prefix(self, request: Request) -> PrefixMatch:
        if not request.reads_prompt:
            return self._blocks.match_prefix(request.block_hashes, request.num_tokens)
        known = min(request.num_tokens, request.high_water + 1)
        return replace(self._blocks.match_prefix(request.block_hashes, known), miss=MissReason.DISABLED)

    def _swap_in(self, request: Request, budget: StepBudget) -> Start | WaitReason:
        self._reserve(request)
        wanted = self._blocks.pages_to_swap_in(request.request_id, self._target(request), request.chunk_limit)
        if not self._has_room(request, wanted):
            return WaitReason.PAGES
        num_tokens = budget.prefill(request.num_tokens - request.num_computed_tokens, request.chunk_limit)
        if not num_tokens:
            return WaitReason.TOKENS
        if not self._blocks.swap_in(request.request_id, request.num_computed_tokens + num_tokens):
            return WaitReason.PAGES
        return Start(num_tokens, None)

    def _has_room(self, request: Request, wanted: int) -> bool:
        """Whether ``wanted`` pages are there beside what running requests will take soon."""
        available = self._blocks.available_pages
        if not self._blocks.sequences:
            return wanted <= available
        request.wanted_pages = wanted + len(request.children) * self._child_pages
        if request.wanted_pages > available:
            return False
        if self._most_headroom is not None and request.wanted_pages + self._most_headroom <= available:
            return True
        if self._headroom is None:
            self._headroom = sum(self._pages_to_grow(one) for one in self._running)
        request.wanted_pages += self._headroom
        return request.wanted_pages <= available

    def _pages_to_grow(self, request: Request) -> int:
        """Pages that a running request, and children that will run beside it, take soon."""
        pages = self._blocks.pages_to_grow(request.request_id, self._target(request), request.chunk_limit)
        return pages + len(request.children) * self._child_pages

    def _target(self, request: Request) -> int:
        """The length that a request must be able to reach without anybody's pages."""
        soon = request.num_expected_tokens + self._config.watermark_tokens
        return min(request.longest, max(soon, request.reserved_tokens))

    def _reserve(self, request: Request) -> None:
        """Keep pages for a request that was preempted too often, as far as it would grow by `RESERVED_TOKENS`."""
        excess = request.num_preemptions - PREEMPTIONS_BEFORE_RESERVATION
        if excess >= 0:
            growth = RESERVED_TOKENS << excess
            request.reserved_tokens = min(request.longest, request.num_tokens + growth)
