"""MLPs: what a layer does to each token by itself, gated or not.

Know no pages, no other tokens and no architectures.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from kernels.attention import AttentionBackend
from models.linear import Linear
from models.lora import Projections
from models.norms import Norm
from models.parameter import NamedParameters
from models.residual import Residual

VECTOR = 64  # elements that torch's activations on CPUs take at once, at most; others have other last bits


class GatedMLP:
    """``down(activation(gate(x)) * up(x))`` (Shazeer, 2020), gate and up in one matrix product."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        backend: AttentionBackend,
        *,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        linear = partial(Linear, bias=bias, dtype=dtype, device=device, dense_product=backend.dense_product)
        self._gate_up = linear(hidden_size, {"gate_proj": intermediate_size, "up_proj": intermediate_size})
        self._down = linear(intermediate_size, {"down_proj": hidden_size})
        self._activation = activation
        self._backend = backend

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The output for ``x`` [num_rows, hidden_size]."""
        return self._down.of_gated(self._gate_up(x), self._activation, self._backend)

    def of_normed(self, residual: Residual, norm: Norm | None) -> torch.Tensor:
        """The block's output for the normed hidden states."""
        gate_up = self._gate_up.of_normed(residual, norm)
        return self._down.of_gated(gate_up, self._activation, self._backend, residual.adapters)

    @property
    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes

    def projections(self, prefix: str) -> Projections:
        """Where adapters go."""
        yield from self._gate_up.projections(prefix)
        yield from self._down.projections(prefix)

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._gate_up.parameters(prefix)
        yield from self._down.parameters(prefix)


class PlainMLP:
    """``down(activation(up(x)))``, the activation GELU in one of its forms."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        backend: AttentionBackend,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        linear = partial(Linear, bias=bias, dtype=dtype, device=device, dense_product=backend.dense_product)
        self._up = linear(hidden_size, {"up_proj": intermediate_size})
        self._down = linear(intermediate_size, {"down_proj": hidden_size})
        self._approximate = {"gelu": "none", "gelu_tanh": "tanh"}[activation]
        self._fills_vectors = intermediate_size % VECTOR == 0

    def of_normed(self, residual: Residual, norm: Norm | None) -> torch.Tensor:
        """The block's output for the normed hidden states."""
        up = self._up.of_normed(residual, norm)
        if not self._fills_vectors:
            up = F.pad(up, (0, 1))[:, :-1]  # rows apart: torch then goes row by row, and each has the same bits alone
        return self._down(F.gelu(up, approximate=self._approximate), residual.adapters)

    @property
    def nbytes(self) -> int:
        return self._up.nbytes + self._down.nbytes

    def projections(self, prefix: str) -> Projections:
        """Where adapters go."""
        yield from self._up.projections(prefix)
        yield from self._down.projections(prefix)

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._up.parameters(prefix)
        yield from self._down.parameters(prefix)
