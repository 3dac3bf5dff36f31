"""Which tokens of a step use which adapter, as the model is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from models.lora import LoraRows, Rows
from scheduler.batch import NO_ADAPTER, ScheduledBatch


def lora_rows(batch: ScheduledBatch, tensor_of: Callable[[Sequence[int]], torch.Tensor]) -> LoraRows | None:
    """None for a step without any. ``tensor_of`` brings indices to where the model is."""
    if all(request.adapter == NO_ADAPTER for request in batch.requests):
        return None
    spans: dict[int, list[range]] = {}
    start = 0
    for request in batch.requests:
        end = start + len(request.token_ids)
        if request.adapter != NO_ADAPTER:
            own = spans.setdefault(request.adapter, [])
            if own and own[-1].stop == start:
                own[-1] = range(own[-1].start, end)
            else:
                own.append(range(start, end))
        start = end
    return LoraRows([(number, _rows(own, tensor_of)) for number, own in spans.items()])


def _rows(spans: Sequence[range], tensor_of: Callable[[Sequence[int]], torch.Tensor]) -> Rows:
    if len(spans) == 1:
        return slice(spans[0].start, spans[0].stop)
    return tensor_of([row for span in spans for row in span])
