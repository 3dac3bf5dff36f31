"""WeightForms: which weights of a model are kept in quantised form, and of what kind.

Knows names and types of tensors, not files nor what a kind is. A product of several tensors (query, key and value) has
one form: all are kept, or none.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType

from kernels.products import KeptMatrix, WeightKernels
from models.parameter import Parameter

ANY_GROUP = 256  # a number of columns that every group of ggml's divides
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")
_FLOATS = {GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "F64")}


class Quantization(enum.StrEnum):
    """``STORED``: what a GGUF file has quantised stays as it is. ``INT8`` and ``INT4``: quantised when loaded."""

    STORED = "stored"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class WeightForms:
    """The choice for one model. Tables (embedding and head) stay at 8 bits with `Quantization.INT4`."""

    quantization: Quantization
    kernels: WeightKernels[Any]

    @property
    def keeps_stored(self) -> bool:
        return self.quantization is Quantization.STORED

    def kind(self, name: str, columns: int, stored: GGMLQuantizationType | None) -> Enum | None:
        """The kind in which the tensor ``name`` is kept; None where it is not. ``stored``: its type in a GGUF file."""
        if self.keeps_stored:
            return None if stored is None else self.kernels.kind(stored.name, columns)
        in_tables = self.quantization is Quantization.INT4 and name in _TABLES
        return self.kernels.kind((Quantization.INT8 if in_tables else self.quantization).value, columns)

    def stored_names(self, stored: Iterable[GGMLQuantizationType]) -> tuple[list[str], list[str]]:
        """Of the quantised types of a file's tensors, those that are kept as they are, and those that become floats."""
        quantised = sorted(set(stored) - _FLOATS)
        kept = [one.name for one in quantised if self.kernels.kind(one.name, ANY_GROUP) is not None]
        return kept, [one.name for one in quantised if one.name not in kept]

    def keep(
        self, parameters: Mapping[str, Parameter], stored: Mapping[str, GGMLQuantizationType], device: torch.device
    ) -> dict[str, KeptMatrix]:
        """Give every parameter that is kept its matrix on ``device``, still to be filled; the matrices by name."""
        products: dict[Callable[[], None], list[str]] = defaultdict(list)
        for name, parameter in parameters.items():
            if parameter.keep is not None and parameter.when_filled is not None:
                products[parameter.when_filled].append(name)
        kept: dict[str, KeptMatrix] = {}
        for names in products.values():
            columns = parameters[names[0]].shape[1]
            kinds = [self.kind(name, columns, stored.get(name)) for name in names]
            if None in kinds:
                continue
            rows = [parameters[name].shape[0] for name in names]
            matrices = self.kernels.matrices(kinds, rows, columns, device) or ()
            for name, matrix in zip(names, matrices, strict=False):
                keep = parameters[name].keep
                assert keep is not None
                keep(matrix)
                kept[name] = matrix
        return kept
