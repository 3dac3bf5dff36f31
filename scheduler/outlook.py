"""Outlook: what a scheduler can say about the time to come: who will start when, and when to come again.

Reads the scheduler's requests and changes nothing. The estimates are for people and for Retry-After; no decision about
a step depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from scheduler.config import SchedulerConfig
from scheduler.exhaustion import Growth, steps_until_exhausted
from scheduler.forecast import AnswerLength, Load, expected_starts
from scheduler.request import Request
from scheduler.step_time import StepTime

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 120.0


class Outlook:
    """``step_time`` and ``answer_length`` learn from what happens; see `StepTime` and `AnswerLength`."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager, capacity: Capacity) -> None:
        self._config = config
        self._blocks = blocks
        self._capacity = capacity
        self.step_time = StepTime()
        self.answer_length = AnswerLength()

    def starts(self, running: Iterable[Request], waiting: Iterable[Request], limit: int) -> list[float]:
        """Seconds until each of the first ``limit`` of ``waiting`` starts."""
        return expected_starts(
            [self._running_load(request) for request in running],
            [self._waiting_load(request) for request in islice(waiting, limit)],
            pages=self._blocks.available_pages,
            places=self._config.max_num_seqs - sum(len(request.family) for request in running),
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            step_time=self.step_time,
        )

    def retry_after(self, starts: Sequence[float], num_before: int) -> float:
        """Seconds after which a place in the full queue is to be had, ``num_before`` others having been told before.

        ``starts`` are the seconds until those that wait start, and so leave the queue.
        """
        seconds = 0.0
        if num_before < len(starts):
            seconds = starts[num_before]
        elif starts:  # beyond the last that waits, places come free as fast as before it
            seconds = starts[-1] * (num_before + 1) / len(starts)
        return min(MAX_RETRY_SECONDS, max(MIN_RETRY_SECONDS, seconds))

    def exhaustion_seconds(self, running: Iterable[Request]) -> float | None:
        """Seconds until ``running`` will have taken every page, growing by a token a step.

        None where they end before, and until a step was seen. Prompts take their pages at once. Of pages that several
        hold, each is taken to give back its part.
        """
        held = {request: self._blocks.sequence_usage(request.request_id).held_pages for request in running}
        share = min(1.0, sum(self._blocks.pool.held_pages) / max(1, sum(held.values())))
        available = self._blocks.available_pages
        growths: list[Growth] = []
        for request, pages in held.items():
            known = max(request.num_scheduled_tokens, request.num_expected_tokens - 1)
            wanted = self._blocks.pages_to_grow(request.request_id, known, request.chunk_limit)
            available -= wanted
            growths += self._growths(request, known, pages * share + wanted)
            for child in request.children:
                growths += self._growths(child, known, 0.0)
        steps = steps_until_exhausted(growths, available, self._blocks.block_size)
        if steps is None or (steps > 0 and not self.step_time.is_known):
            return None
        return steps * self.step_time.seconds(len(held))

    def _growths(self, request: Request, num_tokens: int, held_pages: float) -> Iterator[Growth]:
        """From ``num_tokens`` on, by layer group; a window's grows until it is full."""
        steps = max(1, math.ceil(self._output_left(request)))
        for index, group in enumerate(self._blocks.groups):
            longest = request.longest if group.window is None else min(request.longest, group.window)
            yield Growth(
                slack=-num_tokens % self._blocks.block_size,
                pages_per_block=group.pages_per_block,
                growing_steps=min(steps, max(0, longest - num_tokens)),
                steps=steps,
                held_pages=held_pages if index == 0 else 0.0,
            )

    def _running_load(self, request: Request) -> Load:
        return Load(
            pages=self._blocks.sequence_usage(request.request_id).held_pages,
            num_prefill_tokens=max(0, request.num_expected_tokens - request.num_scheduled_tokens - 1),
            num_output_tokens=self._output_left(request),
        )

    def _waiting_load(self, request: Request) -> Load:
        left = self._output_left(request)
        most = min(request.longest, request.num_tokens + int(left))
        return Load(
            pages=min(self._capacity.num_pages, self._capacity.peak_pages(most, request.chunk_limit)),
            num_prefill_tokens=request.num_tokens - request.num_computed_tokens,
            num_output_tokens=left,
        )

    def _output_left(self, request: Request) -> float:
        return self.answer_length.left(request.num_output_tokens, request.max_tokens)
