"""Weights of a GGUF file, put into place by all threads, in their own bits or as floats.

Knows llama.cpp's blocks, not what its tensors are for. Takes one chunk of memory per thread at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from kernels.cpu.quantised_matrix import PANEL_ROWS
from kernels.products import KeptMatrix
from models.errors import CheckpointError
from models.gguf_file import GGUFTensor
from models.parameter import Parameter
from models.places import Places
from models.tensor_names import Placement

_CHUNK_ELEMENTS = 1 << 18  # 1 MiB of float32: stays in a core's second-level cache


def load_gguf(
    tensors: Mapping[str, GGUFTensor], path: Path, places: Places, report: Callable[[int, int], None]
) -> None:
    """Fill ``places`` from all ``tensors``; ``report`` hears of stored bytes (done, total). Raises CheckpointError."""
    total = sum(tensor.data.nbytes for tensor in tensors.values())
    done = 0

    def place(chunk: _Chunk) -> int:
        num_bytes = chunk.place()
        places.filled(chunk.parameter, chunk.num_elements)
        return num_bytes

    with _single_threads() as workers, ThreadPoolExecutor(workers, thread_name_prefix="dequantise") as pool:
        for num_bytes in pool.map(place, _chunks(tensors, path, places)):
            done += num_bytes
            report(done, total)


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


def _chunks(tensors: Mapping[str, GGUFTensor], path: Path, places: Places) -> Iterator[_Chunk]:
    for tensor in tensors.values():
        for placement, parameter in places.claim(tensor.name, tensor.shape, path):
            kept = places.kept.get(placement.name)
            if len(parameter.shape) == 1:
                yield _Chunk(parameter, parameter.view, _vector(tensor, placement), GGMLQuantizationType.F32)
                continue
            rows = _rows(tensor, placement)
            for part in row_chunks(parameter.shape):
                view = parameter.view[part] if kept is None else None
                yield _Chunk(parameter, view, rows[part], tensor.quantization, part.start, kept, places.keeps_stored)


def _rows(tensor: GGUFTensor, placement: Placement) -> npt.NDArray[np.uint8]:
    """The stored rows of a part."""
    rows = tensor.data if placement.expert is None else tensor.data[placement.expert]
    return rows if placement.rows is None else rows[placement.rows]


def _vector(tensor: GGUFTensor, placement: Placement) -> npt.NDArray[np.uint8]:
    """The values of a part of one dimension, as bytes of float32."""
    values = dequantized(tensor.data, tensor.quantization).numpy()
    if placement.expert is not None:
        values = values[placement.expert]
    return (values if placement.rows is None else values[placement.rows]).view(np.uint8)


def row_chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the first dimension that hold about `_CHUNK_ELEMENTS` each, and begin at whole panels."""
    step = max(1, _CHUNK_ELEMENTS // math.prod(shape[1:]) // PANEL_ROWS) * PANEL_ROWS
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def dequantized(rows: npt.NDArray[np.uint8], quantization: GGMLQuantizationType) -> torch.Tensor:
    """Raw rows as float32 [rows, columns]; releases the interpreter lock while it works. Raises CheckpointError."""
    if quantization is GGMLQuantizationType.Q8_0:
        return _dequantized_q8_0(rows)
    try:
        return torch.from_numpy(np.ascontiguousarray(dequantize(rows, quantization)))
    except NotImplementedError:
        raise CheckpointError(f"the quantisation {quantization.name} is not supported") from None


def _dequantized_q8_0(rows: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Blocks of a float16 scale and 32 int8 values: five times as fast as the general path, for the widest tensors."""
    blocks = torch.from_numpy(rows).view(-1, 34)
    scales = blocks[:, :2].contiguous().view(torch.float16).float()
    return (blocks[:, 2:].view(torch.int8) * scales).view(*rows.shape[:-1], -1)
