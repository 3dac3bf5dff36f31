"""A whole engine in this process that is given loads of a fixed shape and stepped under a recorder.

Knows shapes of loads and how to bring an engine to the steps that count; not what is made of them. Invariants: every
step that counts has the same rows (one for each stream, or all prompts at once), and no request is left afterwards.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from benchmarks.step_costs import StepShape, step_costs
from benchmarks.step_recorder import Part, StepRecorder
from engine.channel import LENGTH, decode_from_engine, frame
from engine.config import EngineConfig, resolve_checkpoint
from engine.messages import EngineRequest, StepOutput
from engine.sampling_params import SamplingParams
from engine.startup import StageTimes, build_engine
from kernels.roofline import Cost
from server.text.detokenizer import Detokenizer
from server.text_parts import load_text_parts

WARM_UP_STEPS = 5
SPARE_TOKENS = 256  # what streams draw before the last of them has begun
KV_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """``num_seqs`` streams with prompts of ``first`` to ``last`` tokens; ``prefills``: the steps that read them count,
    which must take all prompts at once; else those that follow.
    """

    name: str
    num_seqs: int
    first: int
    last: int
    prefills: bool = False

    def prompt_lens(self) -> list[int]:
        """Spread evenly."""
        gaps = max(1, self.num_seqs - 1)
        return [self.first + (self.last - self.first) * number // gaps for number in range(self.num_seqs)]


@dataclass(frozen=True, slots=True)
class Profile:
    """Medians of one load's steps, in seconds: by part, in all, and in all without the recorder; the least to do.

    ``text_seconds`` is what the API process does with a step's message, at the same time as the next step: read it, and
    turn its tokens into text.
    """

    load: Load
    parts: Mapping[Part, float]
    seconds: float
    unwatched_seconds: float
    text_seconds: float
    costs: Mapping[Part, Cost]


@dataclass(frozen=True, slots=True)
class _Run:
    """Seconds of each step that counted, and of its text; how long the sequences were in the middle one."""

    seconds: list[float]
    text_seconds: list[float]
    seq_lens: list[int]


class ProfiledEngine:
    """``config`` is an engine's on a CPU. Raises ConfigError or CheckpointError with one sentence."""

    def __init__(self, config: EngineConfig) -> None:
        checkpoint = resolve_checkpoint(config.model)
        self.spec = checkpoint.read_spec()
        self._tokenizer = load_text_parts(checkpoint, None).tokenizer
        self.engine, self.ready = build_engine(config, StageTimes(), lambda progress: None)
        self._random = random.Random(0)
        self._names = itertools.count()
        self._lengths: dict[str, int] = {}
        self._texts: dict[str, Detokenizer] = {}
        self._text_seconds: list[float] = []  # of every step

    def profile(self, load: Load, steps: int, sampling: SamplingParams) -> Profile:
        """Steps without the recorder, then as many with it."""
        unwatched = self._run(load, steps, sampling, None)
        recorder = StepRecorder()
        with recorder.watching():
            watched = self._run(load, steps, sampling, recorder)
        query_lens = watched.seq_lens if load.prefills else [1] * load.num_seqs
        # float8 has another name in torch than users know it by
        page_bytes = 1 if self.ready.kv_dtype.startswith("fp8") else getattr(torch, self.ready.kv_dtype).itemsize
        elements = self.spec.hidden_size * self.spec.vocab_size
        return Profile(
            load,
            {part: statistics.median(step.get(part, 0.0) for step in recorder.steps) for part in Part},
            statistics.median(watched.seconds),
            statistics.median(unwatched.seconds),
            statistics.median(unwatched.text_seconds),
            step_costs(
                self.spec,
                StepShape(query_lens, watched.seq_lens, load.num_seqs),
                recorder.weight_bytes,
                page_bytes=page_bytes,
                table_bytes=recorder.weight_bytes[Part.HEAD] / elements,
            ),
        )

    def _run(self, load: Load, steps: int, sampling: SamplingParams, recorder: StepRecorder | None) -> _Run:
        if load.prefills:
            seconds = []
            for _ in range(steps):
                self._submit(load, sampling, max_tokens=1)
                seconds.append(self._step(recorder))
                if self.engine.scheduler.has_work:
                    raise ValueError(f"{load.name}: {sum(load.prompt_lens())} tokens do not fit into one step")
            return _Run(seconds, self._text_seconds[-steps:], load.prompt_lens())
        self._submit(load, sampling, max_tokens=SPARE_TOKENS + WARM_UP_STEPS + steps)
        prompts = dict(self._lengths)
        while any(self._lengths[name] == length for name, length in prompts.items()):
            self._step(None)
        for _ in range(WARM_UP_STEPS):
            self._step(None)
        middle = [length + steps // 2 for length in self._lengths.values()]
        seconds = [self._step(recorder) for _ in range(steps)]
        text_seconds = self._text_seconds[-steps:]
        self.engine.abort(list(self._lengths))
        while self.engine.has_work:
            self._step(None)
        return _Run(seconds, text_seconds, middle)

    def _submit(self, load: Load, sampling: SamplingParams, max_tokens: int) -> None:
        self._lengths, self._texts = {}, {}
        for length in load.prompt_lens():
            name = f"r{next(self._names)}"
            self._lengths[name] = length
            self._texts[name] = Detokenizer(self._tokenizer)
            prompt = [self._random.randrange(self.spec.vocab_size) for _ in range(length)]
            fields = {"max_tokens": max_tokens, "ignore_eos": True}
            chosen = SamplingParams(**{name: getattr(sampling, name) for name in sampling.__struct_fields__} | fields)
            self.engine.submit(EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=chosen))

    def _step(self, recorder: StepRecorder | None) -> float:
        """One step and its message, as the engine's process has them; its seconds."""
        started = time.perf_counter()
        with nullcontext() if recorder is None else recorder.step():
            output: StepOutput = self.engine.step()
            with nullcontext() if recorder is None else recorder.part(Part.MESSAGE):
                message = frame(output)
        seconds = time.perf_counter() - started
        self._text_seconds.append(self._read(message))
        for delta in output.deltas:
            if delta.failure is not None:
                raise ValueError(delta.failure.message)
            self._lengths[delta.request_id] += len(delta.token_ids)
        return seconds

    def _read(self, message: bytes) -> float:
        """What the API process does with a message, but for HTTP; its seconds."""
        started = time.perf_counter()
        output = decode_from_engine(message[LENGTH.size :])
        assert isinstance(output, StepOutput)
        for delta in output.deltas:
            self._texts[delta.request_id].feed(delta.token_ids)
        return time.perf_counter() - started
