"""Coded weights put into place: in their own bits where they are kept so, quantised anew, or as floats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels.products import KeptMatrix
from models.chunks import row_chunks
from models.codes.coded_tensors import CodedTensors
from models.codes.coded_weight import CodedWeight
from models.parameter import Parameter
from models.places import Places


def code_chunks(coded: CodedTensors, places: Places) -> Iterator[CodeChunk]:
    """All matrices of codes, on their way into ``places``. Raises CheckpointError."""
    for name in coded.names:
        if places.claim_packed(f"{name}.weight"):
            continue
        tensors = coded.tensors(name)
        weight = coded.read(name)
        for placement, parameter in places.claim(f"{name}.weight", weight.shape, tensors[0].file.path):
            part = weight.part(placement.rows)
            kept = places.kept.get(placement.name)
            for rows in row_chunks(parameter.shape):
                view = parameter.view[rows] if kept is None else None
                yield CodeChunk(parameter, part.part(rows), rows.start, view, kept, places.keeps_stored)
        for tensor in tensors:
            tensor.file.release(tensor.data)


@dataclass(frozen=True, slots=True)
class CodeChunk:
    """Rows of a ``parameter`` from ``first_row`` on: their values go into ``view``, or they into ``kept``.

    ``keeps_codes``: ``kept`` takes codes as they are, and quantises no floats.
    """

    parameter: Parameter
    weight: CodedWeight
    first_row: int
    view: torch.Tensor | None
    kept: KeptMatrix | None
    keeps_codes: bool

    @property
    def num_elements(self) -> int:
        return self.weight.codes.numel()

    def place(self) -> int:
        if self.kept is None:
            assert self.view is not None
            self.view.copy_(self.weight.values())
        elif self.keeps_codes:
            codes = self.weight.codes.contiguous()
            bytes_ = codes.view(torch.uint8) if codes.dtype is torch.float8_e4m3fn else codes
            self.kept.pack_codes(self.first_row, bytes_, self.weight.scales, self.weight.zeros)
        else:
            self.kept.pack_floats(self.first_row, self.weight.values())
        return self.weight.stored_bytes
