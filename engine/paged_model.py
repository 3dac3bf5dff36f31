"""PagedModel: a model and the pages it computes over, put together layer by layer.

Owns which page tensors belong to which layer, and moves pages when the block manager says so. Knows nothing of
requests or of drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from block_manager.kv_cache import KVCache
from block_manager.transfers import Transfer, TransferKind
from engine.input_batch import StepTensors
from engine.page_copies import queue_copy, queue_in, queue_out
from engine.step_stream import StepStream
from kernels.attention import KVPages, PagedLayer
from kernels.gpu.sharing_cost import SharingCost
from kernels.roofline import AttentionShape, DataSheet
from models.lora import LoraRows
from models.model import CausalLM
from models.residual import Residual


class PagedModel:
    """``model`` over ``kv_cache``; ``host_cache`` takes pages that are moved out.

    ``stream``: of a device that works by itself, in whose order pages move.
    """

    def __init__(
        self,
        model: CausalLM,
        kv_cache: KVCache,
        host_cache: KVCache | None = None,
        stream: StepStream | None = None,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._host_cache = host_cache
        self._stream = stream
        pages = [KVPages(*kv_cache.slot_tensors(slot)) for slot in range(len(kv_cache.key_pages))]
        places = [kv_cache.place(layer) for layer in range(model.spec.num_layers)]
        self._layers = [(pages[slot], group, column) for group, column, slot in places]

    @property
    def vocab_size(self) -> int:
        return self._model.spec.vocab_size

    def sharing_cost(self, sheet: DataSheet) -> SharingCost:
        """What steps of this model cost on a device that reaches what ``sheet`` says, with prefixes shared or not."""
        spec, page_bytes = self._model.spec, self._kv_cache.key_pages[0].dtype.itemsize
        shape = AttentionShape(spec.num_q_heads, spec.num_kv_heads, spec.head_dim, page_bytes=page_bytes)
        return SharingCost(sheet, shape, tuple(layer.window for layer in spec.layers), self._model.weight_bytes())

    @torch.inference_mode()
    def hidden(self, step: StepTensors, adapters: LoraRows | None = None) -> Residual:
        """The final states of all tokens of the step, whose keys and values it stores; see `CausalLM.hidden`."""
        return self._model.hidden(step.token_ids, step.positions, self._paged_layers(step), adapters)

    @torch.inference_mode()
    def drawing(self, step: StepTensors, adapters: LoraRows | None = None) -> Residual:
        """As `hidden`, of the tokens that draw alone."""
        layers = self._paged_layers(step)
        if step.last is not None and adapters is None:
            return self._model.hidden(step.token_ids, step.positions, layers, last=step.last)
        hidden = self._model.hidden(step.token_ids, step.positions, layers, adapters)
        return hidden if step.draws_all else hidden.rows(step.logits_rows)

    @torch.inference_mode()
    def logits(self, hidden: Residual) -> torch.Tensor:
        """Float32 logits [num_rows, vocab] of some tokens' states."""
        return self._model.logits(hidden)

    @torch.inference_mode()
    def greedy(self, hidden: Residual) -> torch.Tensor:
        """The most likely token of each row, int64 [num_rows], as `logits` has it."""
        return self._model.greedy(hidden)

    @torch.inference_mode()
    def normed(self, hidden: Residual) -> torch.Tensor:
        """Float32 [num_rows, hidden_size]: states after the last norm."""
        return self._model.normed(hidden)

    def _paged_layers(self, step: StepTensors) -> list[PagedLayer]:
        return [PagedLayer(pages, step.metadata[group][column]) for pages, group, column in self._layers]

    def move_pages(self, transfers: Sequence[Transfer]) -> None:
        """Carry out, or with a stream queue, what the block manager decided, in its order."""
        for transfer in transfers:
            pages = (transfer.sources, transfer.targets)
            if transfer.kind is TransferKind.COPY:
                if self._stream is None:
                    self._kv_cache.copy(*pages)
                else:
                    queue_copy(self._kv_cache, *pages)
            elif self._host_cache is None:
                raise RuntimeError("a page was to move to or from the host, but there is no host memory for pages")
            elif self._stream is not None:
                queue = queue_out if transfer.kind is TransferKind.OUT else queue_in
                queue(self._stream, self._kv_cache, self._host_cache, *pages)
            elif transfer.kind is TransferKind.OUT:
                self._host_cache.copy_from(self._kv_cache, *pages)
            else:
                self._kv_cache.copy_from(self._host_cache, *pages)
