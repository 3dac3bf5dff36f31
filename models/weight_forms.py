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
from math import lcm
from typing import Any

import torch

from kernels.products import KeptMatrix, WeightKernels
from models.parameter import Parameter

CODE_GROUP = 32  # columns that share a scale, where a form does not say how many
ANY_GROUP = 256  # a number of columns that every group of ggml's divides
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")
_FLOATS = {"F32", "F16", "BF16", "F64"}


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How a file stores a weight: ``name`` is ggml's for its bits ("Q8_0"), or that of codes ("codes4").

    ``group``: of codes, the columns that share a scale. ``order`` int64 [columns], where there is one, says which input
    each stored column belongs to.
    """

    name: str
    group: int = CODE_GROUP
    order: torch.Tensor | None = None


class Quantization(enum.StrEnum):
    """``STORED``: what a file has quantised stays as it is. ``INT8`` and ``INT4``: quantised when loaded."""

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

    def kind(self, name: str, columns: int, stored: StoredForm | None) -> Enum | None:
        """The kind in which the tensor ``name`` is kept, ``stored`` in its file as it is; None where it is not."""
        if self.keeps_stored:
            return None if stored is None else self.kernels.kind(stored.name, columns, stored.group)
        in_tables = self.quantization is Quantization.INT4 and name in _TABLES
        return self.kernels.kind((Quantization.INT8 if in_tables else self.quantization).value, columns)

    def stored_names(self, stored: Iterable[StoredForm]) -> tuple[list[str], list[str]]:
        """Of the quantised forms of a file's tensors, those that are kept as they are, and those that become floats."""
        groups = {form.name: form.group for form in stored if form.name not in _FLOATS}
        kept = [
            name
            for name in sorted(groups)
            if self.kernels.kind(name, lcm(ANY_GROUP, groups[name]), groups[name]) is not None
        ]
        return kept, [name for name in sorted(groups) if name not in kept]

    def keep(
        self, parameters: Mapping[str, Parameter], stored: Mapping[str, StoredForm], device: torch.device
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
            orders = [self._order(stored.get(name)) for name in names]
            if None in kinds or not all(_are_alike(order, orders[0]) for order in orders):
                continue
            rows = [parameters[name].shape[0] for name in names]
            matrices = self.kernels.matrices(kinds, rows, columns, device) or ()
            for name, matrix in zip(names, matrices, strict=False):
                keep = parameters[name].keep
                assert keep is not None
                keep(matrix, orders[0])
                kept[name] = matrix
        return kept

    def _order(self, stored: StoredForm | None) -> torch.Tensor | None:
        return None if stored is None or not self.keeps_stored else stored.order


def _are_alike(order: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if order is None or other is None:
        return order is other
    return torch.equal(order, other)
