"""WeightForms: which weights of a model are kept in quantised form, and of what kind.

Knows kinds and names, not files. A product of several tensors (query, key and value) has one form: all are kept, or
none.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gguf.constants import GGMLQuantizationType

from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import GROUP, QuantisedMatrix, WeightKind
from models.model import Parameter

SUPER_GROUP = 256  # columns of a block of the K kinds
_STORED_KINDS = {GGMLQuantizationType[kind.name]: kind for kind in WeightKind}
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def kept_kinds(stored: Iterable[GGMLQuantizationType]) -> list[WeightKind]:
    """Those among the types of a file's tensors that there are kernels for, each once, in the order of `WeightKind`."""
    return sorted({_STORED_KINDS[one] for one in stored if one in _STORED_KINDS})


class Quantization(enum.StrEnum):
    """``STORED``: what a GGUF file has quantised stays as it is. ``INT8`` and ``INT4``: quantised when loaded."""

    STORED = "stored"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class WeightForms:
    """The choice for one model. Tables (embedding and head) stay at 8 bits with `Quantization.INT4`."""

    quantization: Quantization
    library: NativeLibrary

    @property
    def keeps_stored(self) -> bool:
        return self.quantization is Quantization.STORED

    def kind(self, name: str, columns: int, stored: GGMLQuantizationType | None) -> WeightKind | None:
        """The kind in which the tensor ``name`` is kept; None where it is not. ``stored``: its type in a GGUF file."""
        if columns % GROUP:
            return None
        if self.keeps_stored:
            kind = None if stored is None else _STORED_KINDS.get(stored)
            return None if kind in (WeightKind.Q4_K, WeightKind.Q6_K) and columns % SUPER_GROUP else kind
        if self.quantization is Quantization.INT4 and name not in _TABLES:
            return WeightKind.Q4_0
        return WeightKind.Q8_0

    def keep(
        self, parameters: Mapping[str, Parameter], stored: Mapping[str, GGMLQuantizationType]
    ) -> dict[str, QuantisedMatrix]:
        """Give every parameter that is kept its matrix, still to be filled; the matrices by name."""
        products: dict[Callable[[], None], list[str]] = defaultdict(list)
        for name, parameter in parameters.items():
            if parameter.keep is not None and parameter.when_filled is not None:
                products[parameter.when_filled].append(name)
        kept = {}
        for names in products.values():
            kinds = [self.kind(name, parameters[name].shape[1], stored.get(name)) for name in names]
            for name, kind in zip(names, kinds, strict=True):
                parameter = parameters[name]
                if None in kinds or kind is None or parameter.keep is None:
                    continue
                kept[name] = QuantisedMatrix(self.library, kind, *parameter.shape)
                parameter.keep(kept[name])
        return kept
