"""PromptStates: what a step reads from the final hidden states of a prompt's tokens, beside what it draws.

Logits of a few tokens at a time, so that memory is bounded however long the prompt is; computed where the states are,
without waiting. A product of one row may add in another order than one of more, so that a lone token goes through the
head twice: then its bits do not depend on where a chunk of its prompt ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.logprobs import LogprobTable
from engine.paged_model import PagedModel
from models.residual import Residual
from scheduler.batch import ScheduledBatch

MOST_ROWS = 32  # of logits at once: 32 MiB at a vocabulary of 262,144


@dataclass(frozen=True, slots=True)
class PromptPart:
    """What a step is to read of one share. Tokens are counted from the share's own first.

    The log probabilities of ``next_token_ids``, each from the states of the token before it, from ``first`` on, with
    ``num_top`` most likely ones; and the states of ``pooled``.
    """

    first: int
    next_token_ids: Sequence[int]
    num_top: int
    pooled: range


NO_PARTS: Mapping[str, PromptPart] = {}


@dataclass(frozen=True, slots=True)
class PromptStates:
    """What was read: a row of ``logprobs`` per next token, and normed float32 states [num_pooled, hidden_size]."""

    logprobs: LogprobTable | None
    pooled: torch.Tensor | None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> PromptStates:
        """With each part changed, as by a copy to the host."""
        return PromptStates(
            None if self.logprobs is None else self.logprobs.map(change),
            None if self.pooled is None else change(self.pooled),
        )


@torch.inference_mode()
def read_prompts(
    model: PagedModel,
    hidden: Residual,
    batch: ScheduledBatch,
    parts: Mapping[str, PromptPart],
    tensor_of: Callable[[Sequence[int]], torch.Tensor],
) -> dict[str, PromptStates]:
    """The parts of a step with the final states ``hidden``; ``tensor_of`` brings ids to the device."""
    read = {}
    offset = 0
    for share in batch.requests:
        part = parts.get(share.request_id)
        if part is not None:
            read[share.request_id] = _read(model, hidden, offset, part, tensor_of)
        offset += len(share.token_ids)
    return read


def _read(
    model: PagedModel,
    hidden: Residual,
    offset: int,
    part: PromptPart,
    tensor_of: Callable[[Sequence[int]], torch.Tensor],
) -> PromptStates:
    logprobs = None
    if part.next_token_ids:
        token_ids = tensor_of(part.next_token_ids)
        tables = []
        for start, end in _spans(len(token_ids)):
            first = offset + part.first
            logits = model.logits(hidden.span(first + start, first + end))[: end - start]
            tables.append(LogprobTable.of(logits, token_ids[start:end], part.num_top))
        logprobs = LogprobTable.joined(tables)
    pooled = None
    if part.pooled:
        start, end = offset + part.pooled.start, offset + part.pooled.stop
        pooled = model.normed(hidden.span(start, end))[: end - start]
    return PromptStates(logprobs, pooled)


def _spans(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, MOST_ROWS):
        yield start, min(start + MOST_ROWS, count)
