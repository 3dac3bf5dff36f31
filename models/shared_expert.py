"""SharedExpert: the expert of a mixture that every token goes to, by as much as a gate of its own says."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.attention import AttentionBackend
from models.linear import Linear
from models.mlp import GatedMLP
from models.parameter import NamedParameters
from models.spec import ModelSpec


class SharedExpert:
    """``sigmoid(gate(x)) * mlp(x)``; the gate, a number for each token, is computed in float32 as a router's is."""

    def __init__(
        self, spec: ModelSpec, inner_size: int, backend: AttentionBackend, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._mlp = GatedMLP(spec.hidden_size, inner_size, spec.activation, backend, dtype=dtype, device=device)
        self._gate = Linear(
            spec.hidden_size,
            {"shared_expert_gate": 1},
            bias=False,
            dtype=torch.float32,
            device=device,
            dense_product=backend.dense_product,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Like ``x`` [num_tokens, hidden_size]."""
        return self._mlp(x) * self._gate(x.float()).sigmoid().to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._mlp.nbytes + self._gate.nbytes

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._mlp.parameters(f"{prefix}shared_expert.")
        for name, parameter in self._gate.parameters(prefix):
            yield name, replace(parameter, keep=None)
