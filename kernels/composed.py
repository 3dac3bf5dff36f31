"""Small steps between attention and products, composed of torch operations, where a backend has no kernel for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.attention import Preparation


def prepared(heads: torch.Tensor, norm: torch.Tensor | None, preparation: Preparation) -> torch.Tensor:
    """``heads`` [num_tokens, num_heads, head_dim] normed by ``norm``, if there is one, and rotated; see Preparation."""
    x = heads.float()
    if norm is not None:
        x = F.rms_norm(x, x.shape[-1:], eps=preparation.eps) * norm
    if preparation.rotation is not None:
        cos, sin = (part.view(heads.shape[0], 1, -1) for part in preparation.rotation)
        first, second = x.chunk(2, dim=-1)
        x = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return x.to(heads.dtype)


def add_normed(x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x`` plus the RMSNorm of ``branch``; both [num_tokens, hidden_size]."""
    return x + (F.rms_norm(branch.float(), branch.shape[-1:], eps=eps) * weight).to(x.dtype)
