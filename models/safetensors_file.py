"""SafetensorsFile: a file of tensors, read over a memory map, without torch.

Parses the header; tensors are views that cost nothing until they are touched. Knows nothing of models. Invariants:
every size and offset in the header is checked against the bytes that are there, so that a hostile file costs a
SafetensorsFileError and never memory; every view lies wholly inside the file.

Format: https://github.com/huggingface/safetensors (the section "Format")
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.errors import CheckpointError
from models.mapped_file import MappedFile

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000  # as the format says
_METADATA = "__metadata__"


class SafetensorsFileError(CheckpointError):
    """The file cannot be read; the message is one sentence that names it, and the tensor where it is about one."""


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor as it is stored.

    ``dtype`` is the format's name, such as ``BF16``; ``data`` its bytes, a flat view of ``file``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    file: MappedFile = field(repr=False, compare=False)


class SafetensorsFile:
    """An open file. ``tensors`` maps names to SafetensorsTensor, in the order of their bytes.

    Raises SafetensorsFileError when the file cannot be opened, is truncated, or is none of the kind.
    """

    tensors: Mapping[str, SafetensorsTensor]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            if self.path.stat().st_size < 8:
                raise self._error("is too short to be a safetensors file")
            self._file = MappedFile(self.path)
        except OSError as error:
            raise SafetensorsFileError(f"{self.path} cannot be opened: {error.strerror or error}") from None
        header_bytes = struct.unpack_from("<Q", self._file.buffer)[0]
        if header_bytes > min(_MAX_HEADER_BYTES, len(self._file) - 8):
            raise self._error(
                f"is truncated, or no safetensors file: it announces a header of {header_bytes:,} bytes, and has "
                f"{len(self._file):,} in all"
            )
        header = self._header(self._file.buffer[8 : 8 + header_bytes])
        self._body = 8 + header_bytes
        tensors = [self._tensor(name, entry) for name, entry in header.items() if name != _METADATA]
        self.tensors = {tensor.name: tensor for tensor in sorted(tensors, key=lambda tensor: tensor.data.ctypes.data)}

    def _error(self, problem: str) -> SafetensorsFileError:
        return SafetensorsFileError(f"{self.path} {problem}")

    def _header(self, raw: bytes) -> dict[str, object]:
        try:
            header = json.loads(raw)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise self._error("is not a safetensors file: its header is no JSON object")
        return header

    def _tensor(self, name: str, entry: object) -> SafetensorsTensor:
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
                pass
            case _:
                raise self._error(f"has no dtype, shape and data_offsets for the tensor {name!r}")
        bits = DTYPE_BITS.get(dtype)
        if bits is None:
            raise self._error(f"has the unknown dtype {dtype!r} for the tensor {name!r}")
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise self._error(f"has the shape {shape} for the tensor {name!r}")
        num_bytes = -(-math.prod(shape) * bits // 8)
        if not 0 <= begin <= end or end - begin != num_bytes:
            raise self._error(
                f"has {end - begin:,} bytes for the tensor {name!r}, which takes {num_bytes:,}: {dtype} of shape "
                f"{tuple(shape)}"
            )
        if self._body + end > len(self._file):
            raise self._error(
                f"is truncated: the tensor {name!r} ends at byte {self._body + end:,}, and the file has "
                f"{len(self._file):,}"
            )
        data = self._file.bytes[self._body + begin : self._body + end]
        return SafetensorsTensor(name, dtype, tuple(shape), data, self._file)
