"""The parts decoders are made of: Linear, RMSNorm, Residual, Embedding, GatedMLP, Rotary.

Plain callables over tensors that begin empty, filled by ``models.loader`` through ``parameters(prefix)``. They know no
pages, no other tokens and no architectures. Weights have the model's dtype; RMSNorm and rotary compute in float32
and round once. Invariant: on CPUs the weight of a matrix product is packed once it is filled, and plain no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from kernels.attention import AttentionBackend
from kernels.products import DenseProduct, KeptMatrix
from models.matrix_product import MatrixProduct
from models.parameter import Parameter
from models.spec import RopeSpec
from models.weight_place import WeightPlace

NamedParameters = Iterator[tuple[str, Parameter]]


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
        self._outputs = outputs
        self._product = MatrixProduct(
            WeightPlace(rows, in_features, dtype=dtype, device=device),
            torch.empty(rows, dtype=dtype, device=device) if bias else None,
            num_parts=len(outputs),
            dense_product=dense_product,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x)

    def of_normed(self, residual: Residual, norm: RMSNorm) -> torch.Tensor:
        """The product of the normed hidden states."""
        if self._product.takes_prologues:
            return self._product.of_normed(residual.total(), norm.weight, norm.eps)
        return self._product(residual.normed(norm))

    def argmax_of_normed(self, residual: Residual, norm: RMSNorm) -> torch.Tensor:
        """The place of the largest of each row of `of_normed`, int64."""
        if self._product.takes_prologues:
            return self._product.argmax_of_normed(residual.total(), norm.weight, norm.eps)
        return self._product(residual.normed(norm)).float().argmax(dim=-1)

    def of_gated(self, gate_up: torch.Tensor, activation: str, backend: AttentionBackend) -> torch.Tensor:
        """The product of ``activation(gate) * up``, for the two halves of ``gate_up``."""
        if self._product.takes_prologues:
            return self._product.of_gated(gate_up, activation)
        return self._product(backend.gated(gate_up, activation))

    @property
    def nbytes(self) -> int:
        return self._product.nbytes

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


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang and Sennrich, 2019), weight in float32."""

    def __init__(
        self, size: int, eps: float, backend: AttentionBackend, *, plus_one: bool, device: torch.device
    ) -> None:
        self.eps = eps
        self._backend = backend
        self._plus_one = plus_one
        self.weight = torch.empty(size, dtype=torch.float32, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._backend.normed(x, self.weight, self.eps)

    def of_sum(self, x: torch.Tensor, branch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of ``x + branch``, and the sum."""
        return self._backend.normed_sum(x, branch, self.weight, self.eps)

    def added_to(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """``x`` plus the norm of ``branch``; ``x`` itself may be overwritten."""
        return self._backend.add_normed(x, branch, self.weight, self.eps)

    def parameters(self, name: str) -> NamedParameters:
        yield f"{name}.weight", Parameter.of(self.weight, plus_one=self._plus_one)


class Residual:
    """The hidden states [num_tokens, hidden_size] of a step: layers read them normed and add their branches to them.

    A branch is added by whoever reads the states next, so that a sum and the norm after it can be one kernel.
    """

    def __init__(self, x: torch.Tensor, backend: AttentionBackend, branch: torch.Tensor | None = None) -> None:
        """The states are ``x``, which may be overwritten, plus ``branch`` if there is one."""
        self._x = x
        self._backend = backend
        self._branch = branch

    def add(self, branch: torch.Tensor) -> None:
        self._x, self._branch = self.total(), branch

    def add_normed(self, branch: torch.Tensor, norm: RMSNorm) -> None:
        """Add ``norm(branch)``."""
        self._x = norm.added_to(self.total(), branch)

    def normed(self, norm: RMSNorm) -> torch.Tensor:
        if self._branch is None:
            return norm(self._x)
        normed, self._x = norm.of_sum(self._x, self._branch)
        self._branch = None
        return normed

    def total(self) -> torch.Tensor:
        if self._branch is not None:
            self._x, self._branch = self._backend.add(self._x, self._branch), None
        return self._x

    def rows(self, row_ids: torch.Tensor) -> Residual:
        """Those of some tokens."""
        return Residual(self._x[row_ids], self._backend, None if self._branch is None else self._branch[row_ids])

    def span(self, start: int, end: int) -> Residual:
        """Copies of those of the tokens ``start`` to ``end - 1``; a lone one twice."""
        copies = (2 if end - start == 1 else 1, 1)
        branch = None if self._branch is None else self._branch[start:end].repeat(copies)
        return Residual(self._x[start:end].repeat(copies), self._backend, branch)


class Embedding:
    """Rows of a table, times a scale that is rounded to the table's dtype as Gemma's was in training.

    With a tied ``head``, the head's product is of the same table: kept in quantised form, there is one copy of it.
    """

    def __init__(
        self,
        rows: int,
        size: int,
        scale: float,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.place = WeightPlace(rows, size, dtype=dtype, device=device)
        self._kept: KeptMatrix | None = None
        self._scale = torch.tensor(scale, dtype=dtype).item()
        self._dtype = dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._kept is not None:
            rows = self._kept.unpack(token_ids).to(self._dtype)
        else:
            rows = F.embedding(token_ids, self.place.tensor)
        return rows if self._scale == 1.0 else rows * self._scale

    @property
    def nbytes(self) -> int:
        return self.place.nbytes if self._kept is None else self._kept.nbytes

    def parameters(self, name: str, head: MatrixProduct | None) -> NamedParameters:
        """The table; where ``head`` is tied to it, the head's as well."""

        def keep(matrix: KeptMatrix) -> None:
            self._kept = matrix
            if head is not None:
                head.keep(0, matrix)

        # without a head of its own the table is told apart from others by its own method
        when_filled = self._stay if head is None else head.pack
        place = self.place
        yield (
            f"{name}.weight",
            Parameter(lambda: place.tensor, (place.rows, place.columns), when_filled=when_filled, keep=keep),
        )

    def _stay(self) -> None:
        """A table that nothing multiplies with is looked up as it was filled."""


class GatedMLP:
    """``down(activation(gate(x)) * up(x))`` (Shazeer, 2020), gate and up in one matrix product."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        linear = partial(Linear, bias=False, dtype=dtype, device=device, dense_product=backend.dense_product)
        self._gate_up = linear(hidden_size, {"gate_proj": intermediate_size, "up_proj": intermediate_size})
        self._down = linear(intermediate_size, {"down_proj": hidden_size})
        self._activation = activation
        self._backend = backend

    def of_normed(self, residual: Residual, norm: RMSNorm) -> torch.Tensor:
        """The block's output for the normed hidden states."""
        return self._down.of_gated(self._gate_up.of_normed(residual, norm), self._activation, self._backend)

    @property
    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._gate_up.parameters(prefix)
        yield from self._down.parameters(prefix)


Rotation = tuple[torch.Tensor, torch.Tensor]


class Rotary:
    """Rotary position embedding (Su et al., 2021) that rotates element ``i`` with element ``i + head_dim / 2``.

    ``Rotary(positions)`` gives the cosines and sines of a step, float32 [num_tokens, 1, head_dim / 2], which all layers
    of one kind share: there is no table, so no largest position and nothing to grow.
    """

    def __init__(self, rope: RopeSpec, head_dim: int, backend: AttentionBackend, *, device: torch.device) -> None:
        self._backend = backend
        self._frequencies = rotary_frequencies(rope, head_dim).to(device)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        return self._backend.rotation(positions[:, None, None].float() * self._frequencies)


def rotary_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Angle per position of each of the head_dim / 2 pairs, float32."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.scaling == "default":
        return frequencies
    if rope.scaling == "linear":
        return frequencies / rope.parameters["factor"]
    if rope.scaling == "factors":
        return frequencies / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    if rope.scaling == "llama3":
        return _llama3_frequencies(frequencies, rope)
    raise ValueError(f"unknown rotary scaling {rope.scaling!r}")


def _llama3_frequencies(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long waves slowed by ``factor``, short ones kept, a linear blend between (the rule of Llama 3.1)."""
    factor, low, high, context = (
        rope.parameters[name]
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = context * frequencies / (2 * math.pi)  # over the context the model was first trained on
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / factor + kept * frequencies
