"""Weights of safetensors files, put straight into place with one cast, a chunk at a time.

Knows types of floats, not what tensors are for. Invariant: rows are read past the map, a chunk for each thread, and
what was touched of the map is given back at once, so that neither the checkpoint nor a large tensor of it is ever in
memory beside the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from kernels.products import KeptMatrix
from models.chunks import Chunk, place_chunks, row_chunks
from models.codes.coded_tensors import CodedTensors
from models.codes.coded_weights import code_chunks
from models.codes.codes_spec import CodesSpec
from models.errors import CheckpointError
from models.mapped_file import MappedFile
from models.parameter import Parameter
from models.places import Places
from models.safetensors_file import SafetensorsFile, SafetensorsTensor
from models.tensor_names import Placement

_FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def load_safetensors(
    files: Sequence[SafetensorsFile],
    places: Places,
    report: Callable[[int, int], None],
    codes: CodesSpec | None = None,
) -> None:
    """Fill ``places`` from all ``files``; ``report`` hears of stored bytes (done, total). Raises CheckpointError.

    ``codes``: those in which matrices are stored, if they are no floats.
    """
    tensors = [tensor for file in files for tensor in file.tensors.values()]
    total = sum(tensor.data.nbytes for tensor in tensors)
    if codes is None:
        place_chunks(_chunks(tensors, places), total, places, report)
    else:
        coded = CodedTensors(files, codes)
        place_chunks(chain[Chunk](code_chunks(coded, places), _chunks(coded.plain, places)), total, places, report)


def float_values(tensor: SafetensorsTensor) -> torch.Tensor:
    """The tensor as torch sees it, over the file's own bytes. Raises CheckpointError where it holds no floats."""
    dtype = _FLOATS.get(tensor.dtype)
    if dtype is None:
        raise CheckpointError(
            f"{tensor.file.path}: the tensor {tensor.name!r} is stored as {tensor.dtype}, and should be one of "
            f"{', '.join(_FLOATS)}"
        )
    return torch.from_numpy(tensor.data).view(dtype).view(tensor.shape)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows of a ``parameter`` from ``first_row`` on: ``values`` go into ``view``, or into ``kept``.

    ``source`` are the bytes of ``file`` that they are; None where they are a copy.
    """

    parameter: Parameter
    values: torch.Tensor
    first_row: int
    view: torch.Tensor | None
    kept: KeptMatrix | None
    file: MappedFile
    source: npt.NDArray[np.uint8] | None

    @property
    def num_elements(self) -> int:
        return self.values.numel()

    def place(self) -> int:
        values = self.values
        if self.source is not None:  # touching the map would have the system map megabytes around it
            values = torch.from_numpy(self.file.read(self.source)).view(values.dtype).view(values.shape)
        if self.kept is not None:
            self.kept.pack_floats(self.first_row, values)
        else:
            assert self.view is not None
            self.view.copy_(values)
            if self.parameter.plus_one:
                self.view.add_(1.0)
        return values.nbytes


def _chunks(tensors: Sequence[SafetensorsTensor], places: Places) -> Iterator[_Chunk]:
    for tensor in tensors:
        for placement, parameter in places.claim(tensor.name, tensor.shape, tensor.file.path):
            values, source = _part(tensor, placement)
            kept = places.kept.get(placement.name)
            row_bytes = values[0].nbytes
            for part in row_chunks(parameter.shape):
                yield _Chunk(
                    parameter,
                    values[part],
                    part.start,
                    parameter.view[part] if kept is None else None,
                    kept,
                    tensor.file,
                    None if source is None else source[part.start * row_bytes : part.stop * row_bytes],
                )


def _part(tensor: SafetensorsTensor, placement: Placement) -> tuple[torch.Tensor, npt.NDArray[np.uint8] | None]:
    """The values of a part of a tensor, row after row, and the bytes that they are, if they are no copy."""
    values = float_values(tensor)
    first = values.data_ptr()
    if placement.expert is not None:
        values = values[placement.expert]
    if placement.is_transposed and values.ndim == 2:
        values = values.T
    if isinstance(placement.rows, slice):
        values = values[placement.rows]
    elif placement.rows is not None:
        values = values[torch.from_numpy(placement.rows)]
    if placement.rows is None or isinstance(placement.rows, slice):
        if values.is_contiguous():
            start = values.data_ptr() - first
            return values, tensor.data[start : start + values.nbytes]
        values = values.contiguous()
    tensor.file.release(tensor.data)
    return values, None
