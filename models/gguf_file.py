"""GGUFFile: the container format of llama.cpp, read over a memory map.

Parses versions 2 and 3, little-endian: key-value metadata, tensor directory, and raw tensor bytes as numpy views that
cost nothing until touched. Knows nothing of architectures, tokenizers or dequantisation, and imports no torch. Long
arrays (a vocabulary has 262,144 strings) are skipped when the file is opened and decoded when read.

Invariants: every count, length and offset in the file is checked against the bytes that are there before it is used, so
that a hostile file costs a GGUFError and never memory; every tensor view lies wholly inside the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from models.errors import CheckpointError
from models.mapped_file import MappedFile

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_MIN_METADATA_BYTES = 8 + 4 + 1  # key length, value type, smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, dimension count, one dimension, type, offset

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS: dict[GGUFValueType, np.dtype[np.generic]] = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("?"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


class GGUFError(CheckpointError):
    """The file is not a GGUF file that can be read; the message is one sentence and names the file."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of the file, still quantised.

    ``shape`` is row-major, as torch writes it (the file stores it reversed). ``data`` is uint8 [*shape[:-1], bytes per
    row], a view of ``file``, and what ``gguf.quants.dequantize`` takes.
    """

    name: str
    shape: tuple[int, ...]
    quantization: GGMLQuantizationType
    data: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    file: MappedFile = field(repr=False, compare=False)


class _Metadata(Mapping[str, object]):
    """Key to value; a value is decoded at its first access and kept."""

    def __init__(self, readers: dict[str, Callable[[], object]]) -> None:
        self._readers = readers
        self._values: dict[str, object] = {}

    def __getitem__(self, key: str) -> object:
        if key not in self._values:
            self._values[key] = self._readers[key]()
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._readers  # the inherited test would decode the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class GGUFFile:
    """An open GGUF file.

    ``metadata`` maps keys to int, float, bool, str or a list of one of these; ``tensors`` maps names to GGUFTensor, in
    file order. Raises GGUFError when the file cannot be opened or is truncated, malformed or big-endian. A string that
    is not UTF-8 raises it when it is read.
    """

    metadata: Mapping[str, object]
    tensors: Mapping[str, GGUFTensor]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            if self.path.stat().st_size < 4 + 4 + 8 + 8:
                raise self._error("is too short to be a GGUF file")
            self._file = MappedFile(self.path)
        except OSError as error:
            raise GGUFError(f"{self.path} cannot be opened: {error.strerror or error}") from None
        self._buffer = memoryview(self._file.buffer)
        self._size = len(self._buffer)
        self._position = 0
        self._read_header()

    def _error(self, problem: str) -> GGUFError:
        return GGUFError(f"{self.path} {problem}")

    def _read_header(self) -> None:
        if bytes(self._take(4)) != _MAGIC:
            raise self._error("is not a GGUF file: it does not start with the bytes GGUF")
        version = self._u32()
        if version & 0xFFFF == 0:
            raise self._error("is a big-endian GGUF file, which is not supported: convert it to little-endian")
        if version not in _VERSIONS:
            raise self._error(f"has GGUF version {version}; supported versions are 2 and 3")
        num_tensors = self._u64()
        num_keys = self._u64()
        self._require(num_keys * _MIN_METADATA_BYTES + num_tensors * _MIN_TENSOR_BYTES, "its header announces")
        readers: dict[str, Callable[[], object]] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in readers:
                raise self._error(f"has the metadata key {key!r} twice")
            readers[key] = self._value(key)
        self.metadata = _Metadata(readers)
        self.tensors = self._read_tensors(num_tensors)

    def _read_tensors(self, num_tensors: int) -> dict[str, GGUFTensor]:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._error(f"has general.alignment {alignment!r}, which is not a power of two")
        directory: dict[str, tuple[tuple[int, ...], GGMLQuantizationType, int]] = {}
        for _ in range(num_tensors):
            name = self._string()
            if name in directory:
                raise self._error(f"has the tensor {name!r} twice")
            num_dimensions = self._u32()
            if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
                raise self._error(f"has {num_dimensions} dimensions for tensor {name!r}, not 1 to {_MAX_DIMENSIONS}")
            shape = tuple(reversed([self._u64() for _ in range(num_dimensions)]))
            if 0 in shape:
                raise self._error(f"has an empty tensor {name!r} of shape {shape}")
            code = self._u32()
            try:
                quantization = GGMLQuantizationType(code)
            except ValueError:
                raise self._error(f"has the unknown type {code} for tensor {name!r}") from None
            directory[name] = (shape, quantization, self._u64())
        base = -(-self._position // alignment) * alignment
        return {name: self._tensor(name, *entry, base, alignment) for name, entry in directory.items()}

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        quantization: GGMLQuantizationType,
        offset: int,
        base: int,
        alignment: int,
    ) -> GGUFTensor:
        block_elements, block_bytes = GGML_QUANT_SIZES[quantization]
        if shape[-1] % block_elements:
            raise self._error(
                f"has rows of {shape[-1]} elements in tensor {name!r}, {quantization.name} blocks of {block_elements}"
            )
        if offset % alignment:
            raise self._error(f"has tensor {name!r} at offset {offset}, which is not a multiple of {alignment}")
        row_bytes = shape[-1] // block_elements * block_bytes
        num_bytes = math.prod(shape[:-1]) * row_bytes
        start = base + offset
        if start + num_bytes > self._size:
            raise self._error(
                f"is truncated: tensor {name!r} ends at byte {start + num_bytes:,} and the file has {self._size:,}"
            )
        data = self._file.bytes[start : start + num_bytes].reshape(*shape[:-1], row_bytes)
        return GGUFTensor(name, shape, quantization, data, self._file)

    def _require(self, num_bytes: int, what: str) -> None:
        left = self._size - self._position
        if num_bytes > left:
            raise self._error(
                f"is truncated or malformed: {what} {num_bytes:,} bytes at {self._position:,} and {left:,} are left"
            )

    def _take(self, num_bytes: int) -> memoryview:
        self._require(num_bytes, "it should have")
        start = self._position
        self._position += num_bytes
        return self._buffer[start : self._position]

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def _string(self) -> str:
        return self._decode(self._take(self._u64()))

    def _decode(self, raw: memoryview) -> str:
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise self._error(f"has a string that is not UTF-8: {bytes(raw[:40])!r}") from None

    def _value_type(self, key: str) -> GGUFValueType:
        code = self._u32()
        try:
            return GGUFValueType(code)
        except ValueError:
            raise self._error(f"has the unknown value type {code} for metadata key {key!r}") from None

    def _value(self, key: str) -> Callable[[], object]:
        """Step over one value and return what reads it later; only bounds are checked now."""
        value_type = self._value_type(key)
        if value_type is GGUFValueType.STRING:
            text = self._take(self._u64())
            return lambda: self._decode(text)
        if value_type is not GGUFValueType.ARRAY:
            dtype = _SCALARS[value_type]
            raw = self._take(dtype.itemsize)
            return lambda: np.frombuffer(raw, dtype)[0].item()
        value_type = self._value_type(key)
        count = self._u64()
        if value_type is GGUFValueType.STRING:
            return self._string_array(count)
        if value_type is GGUFValueType.ARRAY:
            raise self._error(f"has an array of arrays for metadata key {key!r}, which is not supported")
        dtype = _SCALARS[value_type]
        raw = self._take(count * dtype.itemsize)
        return lambda: np.frombuffer(raw, dtype).tolist()

    def _string_array(self, count: int) -> Callable[[], list[str]]:
        self._require(count * _U64.size, "an array of strings needs")
        buffer, length_at, last = self._buffer, _U64.unpack_from, self._size - _U64.size
        position = self._position
        starts = array("Q")
        for _ in range(count):  # the one long loop of opening a file: 262,144 turns for Gemma 3
            if position > last:
                raise self._error("is truncated or malformed: an array of strings runs past the end of the file")
            starts.append(position)
            position += 8 + length_at(buffer, position)[0]
        self._take(position - self._position)
        starts.append(position)
        return lambda: self._decode_strings(starts)

    def _decode_strings(self, starts: array[int]) -> list[str]:
        """What is between the ``starts`` of neighbours, of which a length is the first."""
        buffer = self._buffer
        try:
            return [str(buffer[start + 8 : end], "utf-8") for start, end in pairwise(starts)]
        except UnicodeDecodeError:
            return [self._decode(buffer[start + 8 : end]) for start, end in pairwise(starts)]  # tells which is none
