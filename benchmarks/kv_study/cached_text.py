"""Texts over KV pages: read in chunks, asked at chosen tokens, forked for questions that share what was read.

The engine's own block manager, tables, pages and kernels, without a scheduler: what is read is known, nothing is drawn.
Knows token ids; nothing of tokenizers. Invariant: pages behind windows go back as they do in a server.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.input_batch import InputBatch
from engine.page_plan import PagePlan
from engine.paged_model import PagedModel
from models.model import CausalLM
from scheduler.batch import ScheduledBatch, ScheduledRequest

MOST_SEQUENCES = 4
CHUNK = 256  # tokens a step


class CachedText:
    """Texts of up to ``max_tokens`` tokens under ``model``, over pages as ``plan`` makes them."""

    def __init__(self, model: CausalLM, plan: PagePlan, max_tokens: int) -> None:
        device = torch.device("cpu")
        capacity = Capacity(plan.groups, plan.block_size, 0, CHUNK)
        num_pages = MOST_SEQUENCES * capacity.peak_pages(max_tokens, CHUNK)
        self.blocks = BlockManager(plan.groups, num_pages, plan.block_size, enable_prefix_caching=False)
        self._inputs = InputBatch(plan.groups, plan.block_size, MOST_SEQUENCES, max_tokens, device)
        self._model = PagedModel(model, plan.allocate(num_pages, device))
        self._hashes = BlockHashes(plan.block_size)  # stays empty: nothing is to be found again
        self._lengths: dict[str, int] = {}
        self._in_rows: set[str] = set()
        self._released: list[str] = []

    def read(self, name: str, token_ids: Sequence[int], first_asked: int) -> torch.Tensor:
        """Read the next tokens of a text, which is opened by this.

        Returns float32 log probabilities [len(token_ids) - first_asked, vocab_size] of what follows each of the tokens
        from ``first_asked`` on.
        """
        parts = [torch.empty(0, self._model.vocab_size)]
        for start in range(0, len(token_ids), CHUNK):
            chunk = list(token_ids[start : start + CHUNK])
            parts.append(self._step(name, chunk, max(0, first_asked - start)))
        return torch.cat(parts)

    def fork(self, name: str, child: str) -> None:
        """Open ``child`` with what ``name`` has read, all pages shared."""
        self.blocks.fork(name, child)
        self._lengths[child] = self._lengths[name]

    def close(self, name: str) -> None:
        """Give its pages back."""
        self.blocks.free(name)
        del self._lengths[name]
        if name in self._in_rows:
            self._in_rows.remove(name)
            self._released.append(name)

    @torch.inference_mode()
    def _step(self, name: str, chunk: list[int], first_asked: int) -> torch.Tensor:
        computed = self._lengths.get(name)
        end = (computed or 0) + len(chunk)
        if computed is None:
            fits = self.blocks.admit(name, self.blocks.match_prefix(self._hashes, end), end)
        else:
            fits = self.blocks.grow(name, end)
        assert fits, "the pool was made for all texts"
        share = ScheduledRequest(
            request_id=name,
            turn=1,
            token_ids=chunk,
            num_computed_tokens=computed or 0,
            samples=False,
            admitted=name not in self._in_rows,
            sequence_ids=(),
            output_index=0,
            new_blocks=self.blocks.take_changed_blocks(name),
        )
        self._model.move_pages(self.blocks.take_transfers())
        step = self._inputs.prepare(ScheduledBatch((share,), released=tuple(self._released)))
        self._in_rows.add(name)
        self._released.clear()
        hidden = self._model.hidden(step)
        self.blocks.commit(name, end, self._hashes)
        self._lengths[name] = end
        asked = torch.arange(min(first_asked, len(chunk)), len(chunk))
        if not len(asked):
            return torch.empty(0, self._model.vocab_size)
        return self._model.logits(hidden.rows(asked)).log_softmax(-1)
