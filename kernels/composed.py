"""Small steps between attention and products, composed of torch operations, where a backend has no kernel for them.

Each computes in float32 or as its operation in torch does, and knows no pages.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.attention import Preparation

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def prepared(heads: torch.Tensor, norm: torch.Tensor | None, preparation: Preparation) -> torch.Tensor:
    """``heads`` [num_tokens, num_heads, head_dim] normed by ``norm``, if there is one, and rotated; see Preparation."""
    x = heads.float()
    if norm is not None:
        x = F.rms_norm(x, x.shape[-1:], eps=preparation.eps) * norm
    if preparation.rotation is not None:
        cos, sin = (part.view(heads.shape[0], 1, -1) for part in preparation.rotation)
        pairs = cos.shape[-1]
        first, second, rest = torch.split(x, [pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
        x = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
    return x.to(heads.dtype)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of the last dimension of ``x`` in float32, by a float32 ``weight``, rounded once."""
    return (F.rms_norm(x.float(), x.shape[-1:], eps=eps) * weight).to(x.dtype)


def normed_sum(
    x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The RMSNorm of ``x + branch``, rounded to their dtype, and that sum."""
    total = x + branch
    return normed(total, weight, eps), total


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """The two halves of ``gate_up`` [num_tokens, 2 * size] combined, as ``AttentionBackend.gated`` says."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "swiglu_oai":
        return _swiglu_oai(gate.float(), up.float()).to(gate_up.dtype)
    return _ACTIVATIONS[activation](gate) * up


def _swiglu_oai(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate = gate.clamp(max=7.0)
    return (up.clamp(-7.0, 7.0) + 1.0) * gate * torch.sigmoid(1.702 * gate)


def add_normed(x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x`` plus the RMSNorm of ``branch``; both [num_tokens, hidden_size]."""
    return x + normed(branch, weight, eps)
