"""LoRA: what an adapter adds to the products of a model's linear layers, for the tokens that use it.

    y[rows] += (x[rows] A^T) B^T            A [rank, columns], B [outputs, rank] times the adapter's scale

(Hu et al., 2021). Computed and added in float32 and rounded once, whatever form the weight has. Knows rows and numbers
of adapters; nothing of requests and files. Invariant: a row's bits depend on no other row, as far as those of a product
of two or more rows do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from kernels.products import DenseProduct
from models.matrix_product import MatrixProduct
from models.weight_place import WeightPlace

Rows = slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class LoraRows:
    """The rows of a step that use an adapter, by its number: a slice, or their indices as int64."""

    parts: Sequence[tuple[int, Rows]]


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """The adapter of one projection: float32 ``a`` [rank, columns] and ``b`` [outputs, rank], which has the scale."""

    a: torch.Tensor
    b: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def to(self, device: torch.device) -> LoraWeights:
        return LoraWeights(self.a.to(device), self.b.to(device))


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter by the names of the projections that it changes. ``digest`` is of all its weights."""

    weights: Mapping[str, LoraWeights]
    digest: str

    @property
    def rank(self) -> int:
        """The largest of its ranks."""
        return max(one.a.shape[0] for one in self.weights.values())

    @property
    def num_bytes(self) -> int:
        return sum(one.nbytes for one in self.weights.values())


@dataclass(frozen=True, slots=True)
class _Part:
    """One projection of a linear layer: ``grow`` makes its outputs, from ``start`` on, of ``rank`` numbers a row."""

    start: int
    rank: int
    grow: MatrixProduct
    outputs: int


class LoraDeltas:
    """The adapters of one linear layer, by number; the layer may compute several projections of the same input."""

    def __init__(self, dense_product: DenseProduct | None) -> None:
        self._dense_product = dense_product
        self._shrink: dict[int, MatrixProduct] = {}  # A of all projections, one after the other
        self._parts: dict[int, tuple[_Part, ...]] = {}

    def add(self, number: int, parts: Sequence[tuple[int, LoraWeights]]) -> None:
        """Take the weights of projections whose outputs begin at these places."""
        self._shrink[number] = self._product(torch.cat([weights.a for _, weights in parts]))
        self._parts[number] = tuple(
            _Part(start, weights.a.shape[0], self._product(weights.b), weights.b.shape[0]) for start, weights in parts
        )

    def remove(self, number: int) -> None:
        """Let go of an adapter, if it has weights here."""
        self._shrink.pop(number, None)
        self._parts.pop(number, None)

    def of_step(self, rows: LoraRows) -> Iterator[tuple[int, Rows]]:
        """The adapters of a step that have weights here, and their rows.

        Not those that were removed: the rows that name them are of requests that ended when the step was made already.
        """
        return ((number, some) for number, some in rows.parts if number in self._parts)

    def add_to(self, y: torch.Tensor, number: int, rows: Rows, x: torch.Tensor) -> None:
        """Add to ``rows`` of the product ``y``, in place, what an adapter makes of their inputs ``x``."""
        num_rows = len(x)
        inputs = x.float()
        if num_rows == 1:
            inputs = inputs.expand(2, -1)  # a product of one row adds up in another order than one of more
        shrunk = self._shrink[number](inputs.contiguous())
        place = 0
        for part in self._parts[number]:
            added = part.grow(shrunk[:, place : place + part.rank].contiguous())[:num_rows]
            place += part.rank
            outputs = y[:, part.start : part.start + part.outputs]
            outputs[rows] = (outputs[rows].float() + added).to(y.dtype)

    def _product(self, weight: torch.Tensor) -> MatrixProduct:
        product = MatrixProduct(WeightPlace.of(weight), dense_product=self._dense_product)
        product.pack()
        return product


@dataclass(frozen=True, slots=True)
class LoraPlace:
    """Where the adapters of a projection [outputs, columns] go: its outputs begin at ``start`` of a linear layer's."""

    deltas: LoraDeltas
    start: int
    outputs: int
    columns: int


Projections = Iterator[tuple[str, LoraPlace]]
