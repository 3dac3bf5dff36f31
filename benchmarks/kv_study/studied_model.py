"""The model that is studied: its checkpoint, its text, and engines over it that are put together from the real parts.

Engines run in this process, so that a step can be timed from its plan to its token. Everything is on the CPU. Knows how
to build, not what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

import torch

from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.choices import Choices, choose_forms
from engine.config import Checkpoint, EngineConfig, resolve_checkpoint
from engine.engine import Engine
from engine.input_batch import InputBatch
from engine.page_plan import PagePlan
from engine.runner import Runner
from kernels.attention import AttentionBackend
from models.loader import load_model
from models.model import CausalLM
from models.spec import ModelSpec
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler
from server.text.tokenizer import Tokenizer
from server.text_parts import load_text_parts

BLOCK_SIZE = 16
CPU = torch.device("cpu")
Windows = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What an engine must hold: ``sequences`` of ``max_tokens``, and ``step_tokens`` in a step."""

    sequences: int
    max_tokens: int
    step_tokens: int
    caches_prefixes: bool = False


class StudiedModel:
    """``model`` as for ``octavo serve``. Raises ConfigError, CheckpointError or TextError with one sentence."""

    def __init__(self, model: str | None, text: Path | None = None) -> None:
        self.checkpoint: Checkpoint = resolve_checkpoint(model)
        choices = Choices.of(EngineConfig(model=str(self.checkpoint.path), device="cpu"))
        self.spec: ModelSpec = choices.spec
        self.backend: AttentionBackend = choices.backend
        self.threads = choices.threads
        self.page_dtype = choices.kv_dtype
        self.page_dtype_name = choices.kv_dtype_name
        self._dtype = choices.dtype
        self.tokenizer: Tokenizer = load_text_parts(self.checkpoint, None).tokenizer
        self._text = "\n\n".join(topics.values()) if text is None else text.read_text(encoding="utf-8")
        self._token_ids: list[int] = []

    @property
    def windows(self) -> Windows:
        """Of each layer; None: it sees everything."""
        return tuple(layer.window for layer in self.spec.layers)

    @property
    def full_layers(self) -> int:
        """Layers that see everything."""
        return self.windows.count(None)

    @property
    def lead(self) -> list[int]:
        """What a text begins with."""
        bos = self.tokenizer.bos_token_id if self.tokenizer.adds_bos else None
        return [] if bos is None else [bos]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prose(self, start: int, count: int) -> list[int]:
        """``count`` tokens of the text, from ``start`` on; from its beginning again where it ends."""
        if not self._token_ids:
            self._token_ids = self.encode(self._text)
        size = len(self._token_ids)
        return [self._token_ids[(start + index) % size] for index in range(count)]

    def load(
        self, *, windows: Windows | None = None, backend: AttentionBackend | None = None, exact: bool = False
    ) -> CausalLM:
        """Its weights as a server keeps them, or ``exact``, in float32; with other ``windows`` of its layers."""
        spec = self.spec if windows is None else with_windows(self.spec, windows)
        return load_model(
            self.checkpoint,
            spec,
            device=CPU,
            dtype=torch.float32 if exact else self._dtype,
            backend=backend or self.backend,
            forms=None if exact else choose_forms("auto", self.backend),
        )

    def plan(self, windows: Windows | None = None, dtype: torch.dtype | None = None) -> PagePlan:
        """Its pages, or those of other ``windows`` or another ``dtype``."""
        spec = self.spec if windows is None else with_windows(self.spec, windows)
        return PagePlan.of(spec, BLOCK_SIZE, dtype or self.page_dtype)

    def make_engine(self, model: CausalLM, plan: PagePlan, shape: EngineShape) -> Engine:
        """An engine with room for what ``shape`` says, on fresh pages that have been touched."""
        capacity = Capacity(plan.groups, plan.block_size, 0, shape.step_tokens)
        num_pages = shape.sequences * capacity.peak_pages(shape.max_tokens, shape.step_tokens)
        blocks = BlockManager(plan.groups, num_pages, plan.block_size, enable_prefix_caching=shape.caches_prefixes)
        cache = plan.allocate(num_pages, CPU)
        for tensor in cache.tensors():
            tensor.zero_()
        scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=shape.sequences,
                max_num_batched_tokens=shape.step_tokens,
                max_model_len=shape.max_tokens,
            ),
            blocks,
        )
        inputs = InputBatch(plan.groups, plan.block_size, shape.sequences, shape.max_tokens, CPU)
        return Engine(
            scheduler,
            Runner(model, cache, inputs),
            eos_token_ids=frozenset(self.spec.eos_token_ids),
            vocab_size=self.spec.vocab_size,
            page_bytes=plan.page_bytes,
            seed=0,
        )


def with_windows(spec: ModelSpec, windows: Sequence[int | None]) -> ModelSpec:
    """The same layers, which see ``windows``."""
    pairs = zip(spec.layers, windows, strict=True)
    return replace(spec, layers=tuple(replace(layer, window=window) for layer, window in pairs))
