"""PromptReader: what is told of a prompt itself, position by position: log probabilities, or its embedding.

    PromptReaders.parts(batch) -> a runner reads the final states of these tokens -> PromptReaders.take(...) -> told

A prompt is computed in chunks, perhaps again after a preemption; each position is read once, when it is first computed.
States are pooled one after the other, in float64, so that a prompt's vector has the same bits however it was cut.

Knows requests and shares of steps; nothing of how a step is computed. Invariant: what a request was told is of its
positions below ``high_water``, and no step that failed has a part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.messages import EngineRequest, Pooling
from engine.prompt_states import NO_PARTS, PromptPart, PromptStates
from engine.sampling_params import TokenLogprobs
from scheduler.batch import ScheduledBatch, ScheduledRequest
from scheduler.request import Request


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """What a step has to tell of a prompt. ``embedding``, little-endian float32, comes with the last position."""

    logprobs: list[TokenLogprobs | None]
    embedding: bytes | None


class PromptReader:
    """Of one request. ``num_top``: most likely tokens told at each position; None: no log probabilities."""

    def __init__(self, request: Request, num_top: int | None, pooling: Pooling | None) -> None:
        self._request = request
        self._num_top = num_top
        self._pooling = pooling
        self._total: np.ndarray[tuple[int], np.dtype[np.float64]] | float = 0.0

    def part(self, share: ScheduledRequest) -> PromptPart | None:
        """What is new of the positions that a share computes; None where it is nothing."""
        request = self._request
        start, length = share.num_computed_tokens, request.num_prompt_tokens
        first = max(start, request.high_water)
        end = min(start + len(share.token_ids), length)
        if first >= end:
            return None
        next_token_ids = [] if self._num_top is None else request.token_ids[first + 1 : min(end + 1, length)]
        pooled = range(0)
        if self._pooling is not None:
            pooled = range(first if self._pooling is Pooling.MEAN else max(first, length - 1), end)
        return PromptPart(
            first - start, next_token_ids, self._num_top or 0, range(pooled.start - start, pooled.stop - start)
        )

    def take(self, share: ScheduledRequest, part: PromptPart, states: PromptStates) -> PromptPiece:
        """The piece that a step has read."""
        told: list[TokenLogprobs | None] = []
        if self._num_top is not None:
            told += [None] * (share.num_computed_tokens + part.first == 0)  # nothing comes before the first token
            if states.logprobs is not None:
                told += states.logprobs.rows([part.num_top] * len(part.next_token_ids))
        if states.pooled is not None:
            for state in states.pooled.numpy():
                self._total = self._total + state.astype(np.float64)
        is_last = share.num_computed_tokens + len(share.token_ids) >= self._request.num_prompt_tokens
        return PromptPiece(told, self._embedding() if is_last else None)

    def _embedding(self) -> bytes | None:
        if self._pooling is None:
            return None
        count = self._request.num_prompt_tokens if self._pooling is Pooling.MEAN else 1
        return np.asarray(self._total / count, dtype="<f4").tobytes()


class PromptReaders:
    """Those of all requests whose prompts are not read to their end."""

    def __init__(self) -> None:
        self._readers: dict[str, PromptReader] = {}

    def add(self, request: Request, wish: EngineRequest) -> None:
        """Read the prompt of ``request`` if that is wished."""
        if request.reads_prompt:
            self._readers[request.request_id] = PromptReader(request, wish.prompt_logprobs, wish.pooling)

    def forget(self, request_id: str) -> None:
        """The request has ended, or its prompt."""
        self._readers.pop(request_id, None)

    def parts(self, batch: ScheduledBatch) -> Mapping[str, PromptPart]:
        """What a step is to read, by request."""
        if not self._readers:
            return NO_PARTS
        reading = ((share, self._readers.get(share.request_id)) for share in batch.requests)
        parts = {share.request_id: reader.part(share) for share, reader in reading if reader is not None}
        return {name: part for name, part in parts.items() if part is not None}

    def take(
        self,
        batch: ScheduledBatch,
        parts: Mapping[str, PromptPart],
        states: Mapping[str, PromptStates],
        is_current: Callable[[ScheduledRequest], bool],
    ) -> dict[str, PromptPiece]:
        """What a step has read of those that are still running, to be called before the scheduler accounts for it."""
        pieces = {}
        for share in batch.requests if parts else ():
            name = share.request_id
            if name in parts and name in self._readers and is_current(share):
                pieces[name] = self._readers[name].take(share, parts[name], states[name])
        return pieces
