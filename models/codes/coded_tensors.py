"""CodedTensors: the tensors of a checkpoint's files, matrix by matrix where they hold codes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from models.codes.code_reader import CodeReader, is_ignored
from models.codes.coded_weight import CodedWeight
from models.codes.codes_spec import CodesMethod, CodesSpec
from models.codes.mxfp4 import single_experts
from models.errors import CheckpointError
from models.safetensors_file import SafetensorsFile, SafetensorsTensor
from models.weight_forms import StoredForm

_DTYPES = {
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
}
_CODES = ("I8", "F8_E4M3")


class CodedTensors:
    """``names`` are those of the matrices of codes, ``plain`` the tensors that are not part of one."""

    def __init__(self, files: Sequence[SafetensorsFile], codes: CodesSpec) -> None:
        self._reader = CodeReader(codes)
        self._codes = codes
        tensors = [tensor for file in files for tensor in file.tensors.values()]
        if codes.method is CodesMethod.MXFP4:
            tensors = list(single_experts(tensors))
        stored = {tensor.name: tensor for tensor in tensors}
        self._parts: dict[str, dict[str, SafetensorsTensor]] = defaultdict(dict)
        for name, tensor in stored.items():
            stem, _, ending = name.rpartition(".")
            if ending in self._reader.suffixes or (ending == "weight" and tensor.dtype in _CODES):
                self._parts[stem][ending] = tensor
        taken = {tensor.name for parts in self._parts.values() for tensor in parts.values()}
        self.plain = [one for name, one in stored.items() if name not in taken and not is_ignored(name)]

    @property
    def names(self) -> list[str]:
        return list(self._parts)

    def tensors(self, name: str) -> list[SafetensorsTensor]:
        """What is stored of the matrix ``name``."""
        return list(self._parts[name].values())

    def read(self, name: str) -> CodedWeight:
        """The matrix ``name``. Raises CheckpointError, with the file, where its tensors do not fit together."""
        with self._naming_file(name):
            return self._reader.read(name, self._values(name))

    def form(self, name: str) -> StoredForm:
        """How the matrix ``name`` is stored."""
        with self._naming_file(name):
            parts = self._values(name)
            group = self._reader.group_columns(name, parts)
            return StoredForm(self._codes.form.value, group, self._reader.order(name, parts))

    def _values(self, name: str) -> dict[str, torch.Tensor]:
        return {ending: _values(tensor) for ending, tensor in self._parts[name].items()}

    @contextmanager
    def _naming_file(self, name: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{self.tensors(name)[0].file.path}: {error}") from None


def _values(tensor: SafetensorsTensor) -> torch.Tensor:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise CheckpointError(f"the tensor {tensor.name!r} is stored as {tensor.dtype}, which no codes are")
    return torch.from_numpy(tensor.data).view(dtype).view(tensor.shape)
