"""Norms of hidden states: RMSNorm and LayerNorm, weights in float32, computed in float32 and rounded once.

They know no pages, no other tokens and no architectures.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from kernels.attention import AttentionBackend
from models.parameter import NamedParameters, Parameter
from models.spec import ModelSpec, NormKind


class Norm(Protocol):
    """A norm over the last dimension."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def of_sum(self, x: torch.Tensor, branch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of ``x + branch``, and the sum."""

    def added_to(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """``x`` plus the norm of ``branch``; ``x`` itself may be overwritten."""

    @property
    def nbytes(self) -> int: ...

    def parameters(self, name: str) -> NamedParameters: ...


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

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def parameters(self, name: str) -> NamedParameters:
        yield f"{name}.weight", Parameter.of(self.weight, plus_one=self._plus_one)


class LayerNorm:
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` over the last dimension (Ba et al., 2016).

    Without weights it ends before the product.
    """

    def __init__(
        self, size: int, eps: float, backend: AttentionBackend, *, has_weights: bool, device: torch.device
    ) -> None:
        self._eps = eps
        self._backend = backend
        self._weight = self._bias = None
        if has_weights:
            self._weight, self._bias = (torch.empty(size, dtype=torch.float32, device=device) for _ in range(2))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.float(), x.shape[-1:], self._weight, self._bias, self._eps).to(x.dtype)

    def of_sum(self, x: torch.Tensor, branch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of ``x + branch``, and the sum."""
        total = self._backend.add(x, branch)
        return self(total), total

    def added_to(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """``x`` plus the norm of ``branch``; ``x`` itself may be overwritten."""
        return self._backend.add(x, self(branch))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._weight, self._bias) if part is not None)

    def parameters(self, name: str) -> NamedParameters:
        for ending, part in (("weight", self._weight), ("bias", self._bias)):
            if part is not None:
                yield f"{name}.{ending}", Parameter.of(part)


def make_norm(spec: ModelSpec, backend: AttentionBackend, device: torch.device) -> Norm:
    """A norm of the hidden states of a model."""
    if spec.norm is NormKind.RMS:
        return RMSNorm(spec.hidden_size, spec.norm_eps, backend, plus_one=spec.norm_plus_one, device=device)
    has_weights = spec.norm is NormKind.LAYER
    return LayerNorm(spec.hidden_size, spec.norm_eps, backend, has_weights=has_weights, device=device)
