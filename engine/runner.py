"""Runner: one ScheduledBatch through the model, one sampled token per request that asks for one.

Owns the model, the page tensors and the block tables on the device; knows nothing of queues or clients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from block_manager.kv_cache import KVCache
from engine.input_batch import InputBatch
from engine.messages import SamplingParams
from engine.sampler import Sampler, uniform_draw
from kernels.attention import KVPages, PagedLayer
from models.model import CausalLM
from scheduler.batch import ScheduledBatch


class Runner:
    """Executes steps over ``kv_cache`` with ``model``; `execute` is synchronous."""

    def __init__(self, model: CausalLM, kv_cache: KVCache, inputs: InputBatch) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._inputs = inputs
        self._sampler = Sampler()
        pages = [KVPages(*kv_cache.slot_tensors(slot)) for slot in range(len(kv_cache.key_pages))]
        places = [kv_cache.place(layer) for layer in range(model.spec.num_layers)]
        self._layers = [(pages[slot], group, column) for group, column, slot in places]

    def execute(self, batch: ScheduledBatch, sampling: Mapping[str, SamplingParams]) -> dict[str, int]:
        """Run the step; returns the next token of each request whose share samples. ``sampling`` seeds must be set."""
        logits = self.logits(batch)
        sampled = [request for request in batch.requests if request.samples]
        if not sampled:
            return {}
        params = [sampling[request.request_id] for request in sampled]
        draws = [
            uniform_draw(one.seed or 0, request.num_computed_tokens + request.num_tokens)
            for one, request in zip(params, sampled, strict=True)
        ]
        token_ids = self._sampler.sample(logits, params, draws)
        return {request.request_id: token for request, token in zip(sampled, token_ids, strict=True)}

    @torch.inference_mode()
    def logits(self, batch: ScheduledBatch) -> torch.Tensor:
        """Float32 logits [num_samples, vocab] of the last row of each request that samples."""
        step = self._inputs.prepare(batch)
        layers = [PagedLayer(pages, step.metadata[group][column]) for pages, group, column in self._layers]
        return self._model.forward(step.token_ids, step.positions, layers, step.logits_rows)
