"""DeviceRunner: steps on a device that works by itself, launched without waiting for it.

    host     fill N | send, launch N | fill N+1 | send, launch N+1 | read N ...
    device            copy, compute, draw N, copy out | copy, compute, draw N+1, copy out | ...

One copy brings a step to the device, one takes its tokens back. A step whose tokens were not known when it was
scheduled reads them where the step before it left them, so that the host need not have seen them. Steps of decodes
alone replay a graph where one was recorded; all others launch their kernels one by one, by the same code, and so do
those whose decodes share so many pages that reading them once saves more than a graph does, those that use adapters,
and those with logits to be edited before the draw: the edits, as many as there are, travel in a copy of their own.

Knows nothing of queues or clients. Invariants: `launch` never waits for the step it launches, nor for one before it,
nor for pages that move; what a step draws lies in ``_drawn`` until the next step has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.block_tables import Array
from engine.cuda_graphs import DecodeGraphs, GraphRecorder
from engine.edited_logits import EditedLogits
from engine.input_batch import FilledStep, InputBatch
from engine.logit_edits import NO_EDITS, StepEdits, edits_of_rows
from engine.logprobs import LogprobTable
from engine.lora_rows import lora_rows
from engine.paged_model import PagedModel
from engine.prefix_sharing import PrefixSharing
from engine.prompt_states import NO_PARTS, PromptPart, PromptStates, read_prompts
from engine.step_buffers import DrawSections, StepShape
from engine.step_result import DrawnToken
from engine.step_stream import Event, StepStream
from engine.token_sampler import TokenSampler
from models.lora import LoraRows
from models.residual import Residual
from scheduler.batch import PLACEHOLDER, ScheduledBatch, ScheduledRequest

if TYPE_CHECKING:
    from engine.sampling_params import SamplingParams

NO_SOURCE = -1
LOGPROB_ROWS = 32  # whose logits are worked on at once, so that memory for that is bounded
_SEED_MASK = (1 << 64) - 1

Drawing = tuple[ScheduledRequest, str]


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way; what it yields lies on the host, and holds its values from ``end`` on.

    A row of ``logprobs`` for each of ``names`` whose ``params`` ask for them, in their order.
    """

    names: tuple[str, ...]
    params: tuple[SamplingParams, ...]
    token_ids: torch.Tensor
    logprobs: LogprobTable | None
    states: Mapping[str, PromptStates]
    start: Event
    end: Event

    def tokens(self) -> dict[str, DrawnToken]:
        self.end.wait()
        asking = [one.logprobs or 0 for one in self.params if one.tells_logprobs]
        logprobs = iter([] if self.logprobs is None else self.logprobs.rows(asking))
        return {
            name: DrawnToken.of(token_id, params, [next(logprobs)] if params.tells_logprobs else [])
            for name, params, token_id in zip(self.names, self.params, self.token_ids.tolist(), strict=True)
        }

    @property
    def seconds(self) -> float:
        return self.end.seconds_since(self.start)

    @property
    def sample_seconds(self) -> float:
        """0: model and draw are one row of kernels, some of them in one graph, with no event between them."""
        return 0.0


class DeviceRunner:
    """Steps of up to ``max_num_seqs`` sequences over the pages of ``model``, on the device of ``stream``."""

    def __init__(
        self,
        model: PagedModel,
        inputs: InputBatch,
        sampler: TokenSampler,
        stream: StepStream,
        max_num_seqs: int,
        sharing: PrefixSharing | None = None,
    ) -> None:
        """``sharing`` None: every sequence reads its own pages."""
        self._model = model
        self._inputs = inputs
        self._sampler = sampler
        self._stream = stream
        self._sharing = sharing
        self._drawn = torch.zeros(max_num_seqs, dtype=torch.int64, device=stream.device)
        self._places: dict[str, int] = {}  # where in ``_drawn`` the step before this one left whose token
        self._graphs = DecodeGraphs((max_num_seqs,))
        self._graph_logits = torch.empty(0)

    def launch(
        self,
        batch: ScheduledBatch,
        sampling: Mapping[str, SamplingParams],
        edits: StepEdits = NO_EDITS,
        parts: Mapping[str, PromptPart] = NO_PARTS,
    ) -> LaunchedStep:
        """Queue the step; seeds of ``sampling`` must be set."""
        start = self._stream.record()
        self._model.move_pages(batch.transfers)
        drawing = [(request, name) for request in batch.requests if request.samples for name in request.sequence_ids]
        params = [sampling[name] for _, name in drawing]
        size = None
        adapters = lora_rows(batch, self._uploaded)
        if not edits and not parts and adapters is None and _is_decode_only(batch, len(drawing)):
            size = self._graphs.size_for(len(batch.requests))
        step = self._inputs.fill(batch, size or 0, self._sharing)
        self._fill_sources(step, batch)
        _fill_draws(step, drawing, params)
        self._inputs.send(step)
        if size is None or step.prefix is not None:
            hidden, logits = self._compute(
                step,
                self._sent_edits(edits, drawing),
                adapters,
                keeps_raw=any(one.tells_logprobs for one in params),
            )
            states = self._read_prompts(hidden, batch, parts) if parts else {}
        else:
            self._graphs.replay(size)
            states, logits = {}, self._graph_logits
        self._places = {name: place for place, (_, name) in enumerate(drawing)}
        return self._take_out(tuple(self._places), logits, tuple(params), start, states)

    def run_null(self, shape: StepShape, *, keeps_raw: bool = False) -> None:
        """Run a step of this shape that reads and writes no page, at the model's full length.

        ``keeps_raw``: it also takes the memory of raw logits beside edited ones.
        """
        no_edits = EditedLogits.of({}, self._model.vocab_size, lambda size: torch.empty(size, dtype=torch.int64))
        self._compute(self._fill_null(shape), no_edits, keeps_raw=keeps_raw)

    def record_graphs(self, recorder: GraphRecorder, sizes: tuple[int, ...]) -> None:
        """Record steps of these many decodes. Their logits have memory of their own, as large as the largest needs."""
        logits = torch.empty(sizes[-1], self._model.vocab_size, device=self._stream.device)

        def ready(size: int) -> Callable[[], None]:
            step = self._fill_null(StepShape(size, size, size))
            return lambda: self._compute_into(logits, step)

        graphs = DecodeGraphs(sizes)
        graphs.record_all(recorder, ready)
        self._graphs, self._graph_logits = graphs, logits

    def _fill_null(self, shape: StepShape) -> FilledStep:
        step = self._inputs.fill_null(shape)
        _draws_of(step).sources[:] = NO_SOURCE
        _fill_draws(step, [], [])
        self._inputs.send(step)
        return step

    def _compute_into(self, logits: torch.Tensor, step: FilledStep) -> None:
        logits[: step.shape.num_draws].copy_(self._compute(step)[1])

    @torch.inference_mode()
    def _compute(
        self,
        step: FilledStep,
        edited: EditedLogits | None = None,
        adapters: LoraRows | None = None,
        *,
        keeps_raw: bool = False,
    ) -> tuple[Residual, torch.Tensor]:
        """Queue what was sent, from token ids to drawn tokens; returns the states of all tokens, and the logits.

        ``keeps_raw``: as the model has them, however ``edited`` before the draw; else they may be either.
        """
        tensors = self._inputs.tensors(step)
        draws = self._inputs.sections(step.shape).draws
        assert draws is not None
        left = self._drawn.index_select(0, draws.sources.clamp(min=0))
        token_ids = torch.where(draws.sources == NO_SOURCE, tensors.token_ids, left)
        hidden = self._model.hidden(replace(tensors, token_ids=token_ids), adapters)
        logits = self._model.logits(hidden.rows(tensors.logits_rows))
        if step.shape.num_draws:
            drawn_from = logits
            if edited is not None:
                drawn_from = logits.clone() if keeps_raw else logits
                edited.apply(drawn_from)
            self._drawn[: step.shape.num_draws] = self._sampler.sample(drawn_from, draws)
        return hidden, logits

    def _read_prompts(
        self, hidden: Residual, batch: ScheduledBatch, parts: Mapping[str, PromptPart]
    ) -> dict[str, PromptStates]:
        """Queue what is read of prompts, and its copies to the host."""
        states = read_prompts(self._model, hidden, batch, parts, self._uploaded)
        return {name: read.map(self._downloaded) for name, read in states.items()}

    def _sent_edits(self, edits: StepEdits, drawing: Sequence[Drawing]) -> EditedLogits | None:
        """The edits of a step, on their way to the device."""
        rows = edits_of_rows(edits, ((name, 0) for _, name in drawing))
        if not rows:
            return None
        written = EditedLogits.of(
            rows, self._model.vocab_size, lambda size: self._stream.host_buffer(size, torch.int64)
        )
        sent = torch.empty(len(written.buffer), dtype=torch.int64, device=self._stream.device)
        self._stream.upload(written.buffer, sent)
        return replace(written, buffer=sent)

    def _fill_sources(self, step: FilledStep, batch: ScheduledBatch) -> None:
        """Say which tokens the step before this one has drawn.

        Where that one failed there are none: its requests have ended, and their rows only take up their place.
        """
        sources = _draws_of(step).sources
        sources[:] = NO_SOURCE
        for row, request in enumerate(batch.requests):
            if request.token_ids[-1] == PLACEHOLDER:
                token = step.host.query_start_loc[row + 1] - 1
                sources[token] = self._places.get(request.request_id, NO_SOURCE)
                step.host.token_ids[token] = 0

    @torch.inference_mode()
    def _take_out(
        self,
        names: tuple[str, ...],
        logits: torch.Tensor,
        params: tuple[SamplingParams, ...],
        start: Event,
        states: Mapping[str, PromptStates],
    ) -> LaunchedStep:
        """Queue the copies of what the step draws."""
        token_ids = self._stream.host_buffer(len(names), torch.int64)
        if not names:
            return LaunchedStep(names, params, token_ids, None, states, start, self._stream.record())
        drawn = self._drawn[: len(names)]
        logprobs = None
        asking = [row for row, one in enumerate(params) if one.tells_logprobs]
        if asking:
            num_top = max(params[row].logprobs or 0 for row in asking)
            logprobs = self._queue_logprobs(logits, drawn, asking, num_top)
        end = self._stream.download(drawn, token_ids)
        return LaunchedStep(names, params, token_ids, logprobs, states, start, end)

    def _queue_logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, asking: Sequence[int], num_top: int
    ) -> LogprobTable:
        """Queue the log probabilities of the tokens of some rows, a few rows at a time, and their copies."""
        tables = []
        for start in range(0, len(asking), LOGPROB_ROWS):
            part = asking[start : start + LOGPROB_ROWS]
            tokens = torch.cat([token_ids[row, None] for row in part])
            tables.append(LogprobTable.of(logits, tokens, num_top, part))
        return LogprobTable.joined(tables).map(self._downloaded)

    def _uploaded(self, token_ids: Sequence[int]) -> torch.Tensor:
        host = self._stream.host_buffer(len(token_ids), torch.int64)
        host.numpy()[:] = token_ids
        sent = torch.empty(len(token_ids), dtype=torch.int64, device=self._stream.device)
        self._stream.upload(host, sent)
        return sent

    def _downloaded(self, source: torch.Tensor) -> torch.Tensor:
        target = self._stream.host_buffer(source.numel(), source.dtype).view(source.shape)
        self._stream.download(source, target)
        return target


def _draws_of(step: FilledStep) -> DrawSections[Array]:
    """What drawing on the device needs, to be written."""
    assert step.host.draws is not None
    return step.host.draws


def _is_decode_only(batch: ScheduledBatch, num_draws: int) -> bool:
    """Whether every request of the step computes one token and draws one."""
    return len(batch.requests) == num_draws == batch.num_tokens and all(one.samples for one in batch.requests)


def _fill_draws(step: FilledStep, drawing: Sequence[Drawing], params: Sequence[SamplingParams]) -> None:
    """Write how each token is drawn; what pads the draws is greedy, which costs least."""
    draws, count = _draws_of(step), len(drawing)
    draws.seed.view(np.uint64)[:count] = [(one.seed or 0) & _SEED_MASK for one in params]
    draws.output_index[:count] = [request.output_index for request, _ in drawing]
    draws.temperature[:count] = [one.temperature for one in params]
    draws.top_k[:count] = [one.top_k for one in params]
    draws.top_p[:count] = [one.top_p for one in params]
    draws.min_p[:count] = [one.min_p for one in params]
    for section, off in (
        (draws.seed, 0),
        (draws.output_index, 0),
        (draws.temperature, 0.0),
        (draws.top_k, 0),
        (draws.top_p, 1.0),
        (draws.min_p, 0.0),
    ):
        section[count:] = off
