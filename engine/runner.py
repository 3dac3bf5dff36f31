"""Runner: one ScheduledBatch through the model, one sampled token per request that asks for one.

Owns the model, the page tensors and the block tables on the device; knows nothing of queues or clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from block_manager.kv_cache import KVCache
from block_manager.transfers import Transfer, TransferKind
from engine.input_batch import InputBatch
from engine.messages import SamplingParams
from engine.sampler import Sampler, log_probability, uniform_draw
from kernels.attention import KVPages, PagedLayer
from models.model import CausalLM
from scheduler.batch import PLACEHOLDER, ScheduledBatch


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A token, and its log probability where the request asked for it, else 0."""

    token_id: int
    logprob: float


class Runner:
    """Executes steps over ``kv_cache`` with ``model``; `execute` is synchronous."""

    def __init__(
        self, model: CausalLM, kv_cache: KVCache, inputs: InputBatch, host_cache: KVCache | None = None
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._host_cache = host_cache
        self._inputs = inputs
        self._sampler = Sampler()
        self._newest: dict[str, int] = {}  # the last token each running sequence drew
        pages = [KVPages(*kv_cache.slot_tensors(slot)) for slot in range(len(kv_cache.key_pages))]
        places = [kv_cache.place(layer) for layer in range(model.spec.num_layers)]
        self._layers = [(pages[slot], group, column) for group, column, slot in places]

    def execute(self, batch: ScheduledBatch, sampling: Mapping[str, SamplingParams]) -> dict[str, DrawnToken]:
        """Run the step; returns the next token of each sequence that draws one. ``sampling`` seeds must be set."""
        self._move_pages(batch.transfers)
        self._fill_in(batch)
        logits = self.logits(batch)
        sampled = [request for request in batch.requests if request.samples]
        drawing = [(row, request, name) for row, request in enumerate(sampled) for name in request.sequence_ids]
        if not drawing:
            return {}
        if len(drawing) > len(sampled):
            logits = logits[[row for row, _, _ in drawing]]
        params = [sampling[name] for _, _, name in drawing]
        draws = [
            uniform_draw(one.seed or 0, request.output_index)
            for one, (_, request, _) in zip(params, drawing, strict=True)
        ]
        token_ids = self._sampler.sample(logits, params, draws)
        self._newest.update((name, token_id) for (_, _, name), token_id in zip(drawing, token_ids, strict=True))
        return {
            name: DrawnToken(token_id, log_probability(row, token_id) if one.rank else 0.0)
            for (_, _, name), token_id, row, one in zip(drawing, token_ids, logits, params, strict=True)
        }

    def _fill_in(self, batch: ScheduledBatch) -> None:
        """Tokens that were not known when the step was scheduled, because the one before it drew them."""
        for request_id in batch.released:
            self._newest.pop(request_id, None)
        for request in batch.requests:
            if request.token_ids[-1] == PLACEHOLDER:
                request.token_ids[-1] = self._newest[request.request_id]

    def _move_pages(self, transfers: Sequence[Transfer]) -> None:
        """Carry out what the block manager decided, in its order."""
        for transfer in transfers:
            if transfer.kind is TransferKind.COPY:
                self._kv_cache.copy(transfer.sources, transfer.targets)
            elif self._host_cache is None:
                raise RuntimeError("a page was to move to or from the host, but there is no host memory for pages")
            elif transfer.kind is TransferKind.OUT:
                self._host_cache.copy_from(self._kv_cache, transfer.sources, transfer.targets)
            else:
                self._kv_cache.copy_from(self._host_cache, transfer.sources, transfer.targets)

    @torch.inference_mode()
    def logits(self, batch: ScheduledBatch) -> torch.Tensor:
        """Float32 logits [num_samples, vocab] of the last row of each request that samples."""
        step = self._inputs.prepare(batch)
        layers = [PagedLayer(pages, step.metadata[group][column]) for pages, group, column in self._layers]
        return self._model.forward(step.token_ids, step.positions, layers, step.logits_rows)
