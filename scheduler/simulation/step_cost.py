"""StepCost: how long a step takes, as a straight line through what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from block_manager.groups import LayerGroup
from scheduler.batch import ScheduledBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds: ``base`` for every step, ``per_token`` computed, ``per_context_token`` read, ``per_moved_page``.

    A request's share of a step reads its context, from the first position to the last one computed, once. Layers with
    a window read only that much of it: the context counts as the mean over all layers.
    """

    base: float
    per_token: float
    per_context_token: float = 0.0
    per_moved_page: float = 0.0

    def seconds(self, batch: ScheduledBatch, num_tokens: int, groups: Sequence[LayerGroup]) -> float:
        """What the step ``batch``, of ``num_tokens`` tokens, takes for a model of layer ``groups``."""
        seconds = self.base + self.per_token * num_tokens
        if self.per_context_token:
            seconds += self.per_context_token * context_tokens(batch, groups)
        if self.per_moved_page and batch.transfers:
            seconds += self.per_moved_page * sum(len(transfer.sources) for transfer in batch.transfers)
        return seconds


def context_tokens(batch: ScheduledBatch, groups: Sequence[LayerGroup]) -> float:
    """Positions that the step reads, in the mean over all layers."""
    num_layers = sum(len(group.layers) for group in groups)
    ends = [share.num_computed_tokens + len(share.token_ids) for share in batch.requests]
    total = 0.0
    for group in groups:
        if group.window is None:
            total += len(group.layers) * sum(ends)
        else:
            # the first position computed sees a window, and each further one adds itself
            reach = group.window - 1
            total += len(group.layers) * sum(
                min(end, reach + len(share.token_ids)) for end, share in zip(ends, batch.requests, strict=True)
            )
    return total / num_layers
