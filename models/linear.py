"""Linear: a learned matrix product of hidden states, of one or more projections at once.

Knows no pages and no architectures. Invariant: on CPUs the weight is packed once it is filled, and plain no more.
"""

from __future__ import annotations

from functools import partial

import torch

from kernels.attention import AttentionBackend
from kernels.products import DenseProduct
from models.lora import LoraDeltas, LoraPlace, LoraRows, Projections
from models.matrix_product import MatrixProduct
from models.norms import Norm, RMSNorm
from models.parameter import NamedParameters, Parameter
from models.residual import Residual
from models.weight_place import WeightPlace


class Linear:
    """``x W^T + b`` for one or more projections of the same input, computed as one matrix product.

    ``outputs`` maps the name of each projection to its number of rows; the result is [..., sum of rows], in order.
    """

    def __init__(
        self,
        in_features: int,
        outputs: dict[str, int],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        dense_product: DenseProduct | None = None,
    ) -> None:
        rows = sum(outputs.values())
        self._in_features = in_features
        self._outputs = outputs
        self._adapters = LoraDeltas(dense_product)
        self._product = MatrixProduct(
            WeightPlace(rows, in_features, dtype=dtype, device=device),
            torch.empty(rows, dtype=dtype, device=device) if bias else None,
            num_parts=len(outputs),
            dense_product=dense_product,
        )

    def __call__(self, x: torch.Tensor, adapters: LoraRows | None = None) -> torch.Tensor:
        """The product of ``x`` [num_tokens, in_features], changed by the adapters that tokens use."""
        product = self._product(x)
        if adapters is not None:
            for number, rows in self._adapters.of_step(adapters):
                self._adapters.add_to(product, number, rows, x[rows])
        return product

    def of_normed(self, residual: Residual, norm: Norm | None) -> torch.Tensor:
        """The product of the hidden states, normed if there is a norm, changed by the adapters that tokens use."""
        if norm is None:
            return self(residual.total(), residual.adapters)
        product = product_of_normed(self._product, residual, norm)
        if residual.adapters is not None:
            for number, rows in self._adapters.of_step(residual.adapters):
                self._adapters.add_to(product, number, rows, norm(residual.total()[rows]))
        return product

    def argmax_of_normed(self, residual: Residual, norm: Norm) -> torch.Tensor:
        """The place of the largest of each row of `of_normed`, int64."""
        return argmax_of_normed(self._product, residual, norm)

    def of_gated(
        self, gate_up: torch.Tensor, activation: str, backend: AttentionBackend, adapters: LoraRows | None = None
    ) -> torch.Tensor:
        """The product of ``activation(gate) * up``, for the two halves of ``gate_up``; see `__call__`."""
        if not self._product.takes_gate(activation):
            return self(backend.gated(gate_up, activation), adapters)
        product = self._product.of_gated(gate_up, activation)
        if adapters is not None:
            for number, rows in self._adapters.of_step(adapters):
                self._adapters.add_to(product, number, rows, backend.gated(gate_up[rows], activation))
        return product

    @property
    def nbytes(self) -> int:
        return self._product.nbytes

    def projections(self, prefix: str) -> Projections:
        """Where the adapters of each projection go."""
        start = 0
        for name, rows in self._outputs.items():
            yield f"{prefix}{name}", LoraPlace(self._adapters, start, rows, self._in_features)
            start += rows

    def parameters(self, prefix: str) -> NamedParameters:
        """The places of each projection; none once they are packed or kept."""
        product = self._product
        place, bias = product.place, product.bias
        if place is None:
            return
        start = 0
        for part, (name, rows) in enumerate(self._outputs.items()):
            yield (
                f"{prefix}{name}.weight",
                Parameter(
                    partial(place.part, start, start + rows),
                    (rows, place.columns),
                    when_filled=product.pack,
                    keep=partial(product.keep, part),
                ),
            )
            if bias is not None:
                yield (
                    f"{prefix}{name}.bias",
                    Parameter(partial(bias.narrow, 0, start, rows), (rows,), when_filled=product.pack),
                )
            start += rows


def product_of_normed(product: MatrixProduct, residual: Residual, norm: Norm) -> torch.Tensor:
    """The product of normed hidden states; the norm is done on the way into the product where that can do it."""
    if product.takes_prologues and isinstance(norm, RMSNorm):
        return product.of_normed(residual.total(), norm.weight, norm.eps)
    return product(residual.normed(norm))


def argmax_of_normed(product: MatrixProduct, residual: Residual, norm: Norm) -> torch.Tensor:
    """The place of the largest of each row of `product_of_normed`, int64."""
    if product.takes_prologues and isinstance(norm, RMSNorm):
        return product.argmax_of_normed(residual.total(), norm.weight, norm.eps)
    return product(residual.normed(norm)).float().argmax(dim=-1)
