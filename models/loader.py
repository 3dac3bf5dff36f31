"""From a Checkpoint to a CausalLM with its weights in place.

Knows formats and how to check them, not architectures: a model says which parameters it has, and each tensor of the
checkpoint goes straight into its place with one cast. Invariants: when `load_model` returns, every parameter was
written exactly once; files are memory-mapped, so that no copy of the checkpoint is held beside the model; a weight is
packed as soon as it is filled, so that two forms of it exist for one weight at a time (or per thread, of a GGUF file).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from safetensors import SafetensorError, safe_open

from kernels.attention import AttentionBackend
from kernels.products import KeptMatrix
from models.checkpoint import Checkpoint, CheckpointFormat
from models.errors import CheckpointError
from models.gemma3 import build_gemma3
from models.gguf_file import GGUFTensor
from models.gguf_weights import dequantized, parameter_name, row_chunks, rows_in_order
from models.llama import build_llama
from models.model import CausalLM
from models.parameter import Parameter
from models.spec import ModelSpec
from models.weight_forms import WeightForms

Progress = Callable[[int, int], None]

_BUILDERS = {"llama": build_llama, "gemma3": build_gemma3}


def load_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    *,
    device: torch.device,
    dtype: torch.dtype,
    backend: AttentionBackend,
    on_progress: Progress | None = None,
    forms: WeightForms | None = None,
) -> CausalLM:
    """Build the model of ``spec`` and fill it from ``checkpoint``.

    Weights of matrix products for which ``forms`` has a kind are kept so; all others become ``dtype``.
    ``on_progress`` hears of stored bytes (done, total). Raises CheckpointError that names the tensor and the file when
    a tensor is missing, unknown, of another shape, or of a type that cannot be read.
    """
    model = _BUILDERS[spec.architecture](spec, backend, dtype=dtype, device=device)
    stored = stored_types(checkpoint, spec) if checkpoint.format is CheckpointFormat.GGUF else {}
    parameters = model.parameters()
    kept = {} if forms is None else forms.keep(parameters, stored, device)
    places = _Places(model, parameters, kept, checkpoint.path, keeps_stored=forms is not None and forms.keeps_stored)
    report = on_progress or (lambda done, total: None)
    if checkpoint.format is CheckpointFormat.GGUF:
        _load_gguf(checkpoint, spec, places, report)
    else:
        _load_safetensors(checkpoint.weight_files(), places, report)
    places.require_all_filled()
    return model


class _Places:
    """The parameters of a model, each to be claimed once; ``kept`` are the matrices of those that stay quantised."""

    def __init__(
        self,
        model: CausalLM,
        parameters: Mapping[str, Parameter],
        kept: Mapping[str, KeptMatrix],
        source: Path,
        *,
        keeps_stored: bool,
    ) -> None:
        self._left = dict(parameters)
        self.kept = kept
        self.keeps_stored = keeps_stored
        self._claimed: set[str] = set()
        self._missing_elements: Counter[Callable[[], None]] = Counter()
        for parameter in self._left.values():
            if parameter.when_filled is not None:
                self._missing_elements[parameter.when_filled] += parameter.num_elements
        self._lock = Lock()
        self._source = source
        self._ignored = {"lm_head.weight"} if model.spec.tied_embeddings else set()

    def claim(self, name: str | None, shape: tuple[int, ...], file: Path, stored_name: str) -> Parameter | None:
        """Where the tensor goes, or None when the model computes what it holds."""
        if stored_name.endswith("rotary_emb.inv_freq") or stored_name == "rope_freqs.weight" or name in self._ignored:
            return None
        parameter = None if name is None else self._left.pop(name, None)
        if name is None or parameter is None:
            problem = "is there twice" if name in self._claimed else "is not part of this architecture"
            raise CheckpointError(f"{file}: the tensor {stored_name!r} of shape {shape} {problem}")
        if parameter.shape != shape:
            raise CheckpointError(
                f"{file}: the tensor {stored_name!r} has the shape {shape} and should have {parameter.shape}"
            )
        self._claimed.add(name)
        return parameter

    def filled(self, parameter: Parameter, num_elements: int) -> None:
        """Count values that are in place; the thread that brings the last of a weight calls its ``when_filled``."""
        if parameter.when_filled is None:
            return
        with self._lock:
            self._missing_elements[parameter.when_filled] -= num_elements
            is_last = self._missing_elements[parameter.when_filled] == 0
        if is_last:
            parameter.when_filled()

    def require_all_filled(self) -> None:
        if self._left:
            name, parameter = next(iter(self._left.items()))
            others = f" and {len(self._left) - 1} more" if len(self._left) > 1 else ""
            raise CheckpointError(f"{self._source}: the tensor {name!r} of shape {parameter.shape}{others} is missing")


def _load_safetensors(files: tuple[Path, ...], places: _Places, report: Progress) -> None:
    total = sum(file.stat().st_size for file in files)
    done = 0
    for file in files:
        try:
            with safe_open(file, framework="pt", device="cpu") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a mapping
                    values = shard.get_tensor(name)
                    parameter = places.claim(name, tuple(values.shape), file, name)
                    if parameter is None:
                        continue
                    if name in places.kept:
                        places.kept[name].pack_floats(0, values, torch.get_num_threads())
                    else:
                        parameter.view.copy_(values)
                        if parameter.plus_one:
                            parameter.view.add_(1.0)
                    places.filled(parameter, values.numel())
                    done += values.nbytes
                    report(done, total)
        except SafetensorError as error:
            raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from None
    report(total, total)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some stored rows of a ``parameter`` and where they go: their values into ``view``, or they into ``kept``."""

    parameter: Parameter
    view: torch.Tensor | None
    rows: npt.NDArray[np.uint8]
    quantization: GGMLQuantizationType
    first_row: int = 0
    kept: KeptMatrix | None = None
    keeps_stored: bool = False

    @property
    def num_elements(self) -> int:
        shape = self.parameter.shape
        return math.prod(shape) if len(shape) == 1 else len(self.rows) * math.prod(shape[1:])

    def place(self) -> int:
        """Put the rows into their place; returns their stored bytes."""
        if self.kept is None:
            assert self.view is not None
            self.view.copy_(dequantized(self.rows, self.quantization))
        elif self.keeps_stored:
            self.kept.pack_stored(self.first_row, torch.from_numpy(np.ascontiguousarray(self.rows)))
        else:
            self.kept.pack_floats(self.first_row, dequantized(self.rows, self.quantization))
        return self.rows.nbytes


def _load_gguf(checkpoint: Checkpoint, spec: ModelSpec, places: _Places, report: Progress) -> None:
    tensors = checkpoint.gguf_file().tensors
    total = sum(tensor.data.nbytes for tensor in tensors.values())
    done = 0

    def place(chunk: _Chunk) -> int:
        num_bytes = chunk.place()
        places.filled(chunk.parameter, chunk.num_elements)
        return num_bytes

    with _single_threads() as workers, ThreadPoolExecutor(workers, thread_name_prefix="dequantise") as pool:
        for num_bytes in pool.map(place, _gguf_chunks(tensors, checkpoint.path, spec, places)):
            done += num_bytes
            report(done, total)


@contextmanager
def _single_threads() -> Iterator[int]:
    """Give torch's threads to a pool of as many workers: an operation that a worker starts runs in that worker alone.

    Threads that start meanwhile inherit the limit; nested teams would wait for each other on busy cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _gguf_chunks(tensors: Mapping[str, GGUFTensor], path: Path, spec: ModelSpec, places: _Places) -> Iterator[_Chunk]:
    for tensor in tensors.values():
        name = parameter_name(spec.architecture, tensor.name)
        parameter = places.claim(name, tensor.shape, path, tensor.name)
        if parameter is None or name is None:
            continue
        rows = rows_in_order(tensor, name, spec)
        if len(tensor.shape) == 1:
            yield _Chunk(parameter, parameter.view, rows, tensor.quantization)
            continue
        kept = places.kept.get(name)
        for part in row_chunks(tensor.shape):
            view = parameter.view[part] if kept is None else None
            yield _Chunk(parameter, view, rows[part], tensor.quantization, part.start, kept, places.keeps_stored)


def stored_types(checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, GGMLQuantizationType]:
    """The type of each parameter's tensor in a GGUF file."""
    tensors = checkpoint.gguf_file().tensors.values()
    named = [(parameter_name(spec.architecture, tensor.name), tensor.quantization) for tensor in tensors]
    return {name: quantization for name, quantization in named if name is not None}
