"""Forecast: when waiting requests will start, from what runs, what waits before them, and how long steps take.

A fluid picture, not a simulation of steps: running requests end after their expected remaining tokens, one a step, and
give their pages back; waiting ones start in order, when pages and places are there and the prompts before them are
computed. Its error is measured in the simulator (docs/benchmarks.md). How many tokens an answer has of those it may
have is learnt from requests that ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.step_time import StepTime


@dataclass(frozen=True, slots=True)
class Load:
    """What one request still needs: pages at its peak, tokens to compute first, tokens to draw then."""

    pages: int
    num_prefill_tokens: int
    num_output_tokens: float


class AnswerLength:
    """The share of ``max_tokens`` that answers had, of late."""

    def __init__(self, memory: int = 100) -> None:
        self._weight = 1.0 / memory
        self._share: float | None = None

    def observe(self, num_output_tokens: int, max_tokens: int) -> None:
        """A request ended by itself."""
        share = num_output_tokens / max_tokens
        self._share = share if self._share is None else self._share + self._weight * (share - self._share)

    def left(self, num_output_tokens: int, max_tokens: int) -> float:
        """Tokens that a request is expected to draw besides ``num_output_tokens``."""
        expected = max_tokens * (1.0 if self._share is None else self._share)
        if num_output_tokens < expected:
            return expected - num_output_tokens
        return (max_tokens - num_output_tokens) / 2  # longer than most: nothing is known but its bound


def expected_starts(
    running: Sequence[Load],
    waiting: Sequence[Load],
    *,
    pages: int,
    places: int,
    max_num_batched_tokens: int,
    step_time: StepTime,
) -> list[float]:
    """Seconds from now until each of ``waiting``, in its order, starts.

    ``pages`` are available now, and ``places`` more requests may run. A running request's ``pages`` are those it will
    give back. Empty estimates (no step was seen) are 0.
    """
    decode = step_time.seconds(max(1, len(running)))
    prefill = step_time.seconds(max_num_batched_tokens) / max_num_batched_tokens
    now = 0.0
    ends: list[tuple[float, int]] = []
    for load in running:
        now += load.num_prefill_tokens * prefill  # prompts are computed one after the other
        heapq.heappush(ends, (now + load.num_output_tokens * decode, load.pages))
    now = 0.0
    computed = sum(load.num_prefill_tokens for load in running) * prefill
    starts = []
    for load in waiting:
        while ends and (pages < load.pages or places < 1):
            ended, returned = heapq.heappop(ends)
            now = max(now, ended)
            pages += returned
            places += 1
        start = max(now, computed)
        starts.append(start)
        computed = start + load.num_prefill_tokens * prefill
        pages -= load.pages
        places -= 1
        heapq.heappush(ends, (computed + load.num_output_tokens * decode, load.pages))
    return starts
