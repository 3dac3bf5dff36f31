"""Runner: one ScheduledBatch through the model and the sampler, on the device whose memory is the host's.

Owns the model, the page tensors and the block tables; knows nothing of queues or clients. A step is over when its
launch returns. The runner of other devices is in ``engine.device_runner``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import torch

from block_manager.kv_cache import KVCache
from engine.edited_logits import EditedLogits
from engine.input_batch import InputBatch
from engine.logit_edits import NO_EDITS, LogitEdit, StepEdits, edits_of_rows
from engine.logprobs import token_logprobs
from engine.lora_rows import lora_rows
from engine.paged_model import PagedModel
from engine.prompt_states import NO_PARTS, PromptPart, PromptStates, read_prompts
from engine.sampler import Sampler, uniform_draw
from engine.sampling_params import SamplingParams, TokenLogprobs
from engine.step_result import DrawnToken, FinishedStep
from engine.verification import num_accepted
from models.model import CausalLM
from models.residual import Residual
from scheduler.batch import PLACEHOLDER, ScheduledBatch


class Runner:
    """Executes steps over ``kv_cache`` with ``model``, one after the other."""

    def __init__(
        self, model: CausalLM, kv_cache: KVCache, inputs: InputBatch, host_cache: KVCache | None = None
    ) -> None:
        self._model = PagedModel(model, kv_cache, host_cache)
        self._inputs = inputs
        self._sampler = Sampler.best()
        self._newest: dict[str, int] = {}  # the tokens that the step before this one drew

    def launch(
        self,
        batch: ScheduledBatch,
        sampling: Mapping[str, SamplingParams],
        edits: StepEdits = NO_EDITS,
        parts: Mapping[str, PromptPart] = NO_PARTS,
    ) -> FinishedStep:
        """Run the step; seeds of ``sampling`` must be set."""
        started = time.perf_counter()
        self._model.move_pages(batch.transfers)
        self._fill_in(batch)
        step = self._inputs.prepare(batch)
        adapters = lora_rows(batch, torch.tensor)
        states: dict[str, PromptStates] = {}
        if parts:
            hidden = self._model.hidden(step, adapters)
            states = read_prompts(self._model, hidden, batch, parts, torch.tensor)
            with torch.inference_mode():
                drawing = hidden.rows(step.logits_rows)
        else:
            drawing = self._model.drawing(step, adapters)
        drawn, draw_began = self._draw(batch, drawing, sampling, edits)
        ended = time.perf_counter()
        return FinishedStep(drawn, ended - started, ended - draw_began, states)

    def _draw(
        self, batch: ScheduledBatch, hidden: Residual, sampling: Mapping[str, SamplingParams], edits: StepEdits
    ) -> tuple[dict[str, DrawnToken], float]:
        """The next tokens of a step, from the states of the tokens that they follow; and when their logits were there.

        A greedy token's are never there by themselves: the model tells only the largest.
        """
        drawing = [
            (request, name, place)
            for request in batch.requests
            if request.samples
            for name in request.sequence_ids
            for place in range(request.num_drafts + 1)
        ]
        params = [sampling[name] for _, name, _ in drawing]
        logits = None
        if not edits and all(one.temperature == 0.0 and not one.tells_logprobs for one in params):
            token_ids = self._model.greedy(hidden)[: len(drawing)].tolist()
            began = time.perf_counter()
        else:
            logits = self._model.logits(hidden)[: len(drawing)]
            began = time.perf_counter()
            draws = [
                uniform_draw(one.seed or 0, request.output_index + place)
                for one, (request, _, place) in zip(params, drawing, strict=True)
            ]
            by_row = edits_of_rows(edits, ((name, place) for _, name, place in drawing))
            token_ids = self._sample(logits, by_row, params, draws)
        spans = {  # of the rows whose tokens stand, by sequence; the last one's is the newest
            name: range(row, row + 1 + num_accepted(request.drafts, token_ids[row : row + request.num_drafts]))
            for row, (request, name, place) in enumerate(drawing)
            if place == 0
        }
        told = {} if logits is None else _logprobs(logits, token_ids, params, spans.values())
        drawn = {
            name: DrawnToken.of(
                token_ids[span[-1]], params[span[0]], [told[row] for row in span if row in told], len(span) - 1
            )
            for name, span in spans.items()
        }
        self._newest = {name: token.token_id for name, token in drawn.items()}
        return drawn, began

    @torch.inference_mode()
    def _sample(
        self,
        logits: torch.Tensor,
        edits: Mapping[int, LogitEdit],
        params: Sequence[SamplingParams],
        draws: Sequence[float],
    ) -> list[int]:
        """Draw from the edited logits. Rows whose log probabilities are told are afterwards as they were."""
        raw = {row: logits[row].clone() for row in edits if params[row].tells_logprobs}
        if edits:
            EditedLogits.of(edits, logits.shape[1], _host_memory).apply(logits)
        token_ids = self._sampler.sample(logits, params, draws)
        for row, values in raw.items():
            logits[row].copy_(values)
        return token_ids

    def _fill_in(self, batch: ScheduledBatch) -> None:
        """Tokens that were not known when the step was scheduled, because the one before it drew them.

        Where that one failed there is none: its requests have ended, and their rows only take up their place.
        """
        newest, self._newest = self._newest, {}
        for request in batch.requests:
            if request.token_ids[-1] == PLACEHOLDER:
                request.token_ids[-1] = newest.get(request.request_id, 0)


def _logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], params: Sequence[SamplingParams], spans: Iterable[range]
) -> dict[int, TokenLogprobs]:
    """By row, where its request asks for it; of all at once, so that threads share them."""
    rows = [row for span in spans for row in span if params[row].tells_logprobs]
    if not rows:
        return {}
    nums_top = [params[row].logprobs or 0 for row in rows]
    return dict(zip(rows, token_logprobs(logits, rows, [token_ids[row] for row in rows], nums_top), strict=True))


def _host_memory(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int64)
