"""Slow, obvious, float64: what the kernels around attention are tested against.

Layouts are those of the modules in ``kernels.gpu`` that compute the same. Nothing is rounded to the dtype of the
inputs, unless it says so.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension (Zhang and Sennrich, 2019)."""
    x = x.double()
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the sum after it was rounded to x's dtype, and that sum."""
    total = (x.double() + residual.double()).to(x.dtype)
    return rms_norm(total, weight, eps), total


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Pairs of the first elements of [num_tokens, num_heads, head_dim] turned by angles [num_tokens, pairs]."""
    output = x.double()
    pairs = cos.shape[-1]
    for pair in range(pairs):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        a, b = x[..., first].double(), x[..., second].double()
        c, s = cos[:, None, pair].double(), sin[:, None, pair].double()
        output[..., first] = a * c - b * s
        output[..., second] = b * c + a * s
    return output


def gate_silu(gate_up: torch.Tensor) -> torch.Tensor:
    """SwiGLU: ``gate * sigmoid(gate) * up`` (Shazeer, 2020)."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def gate_gelu_tanh(gate_up: torch.Tensor) -> torch.Tensor:
    """GeGLU with the tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return gate / 2 * (1 + torch.tanh(inner)) * up


def gate_gelu(gate_up: torch.Tensor) -> torch.Tensor:
    """GeGLU with GELU itself: ``gate`` times the normal distribution's CDF there (Hendrycks and Gimpel, 2016)."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * (1 + torch.erf(gate / math.sqrt(2))) / 2 * up


def gate_swiglu_oai(gate_up: torch.Tensor) -> torch.Tensor:
    """The limited SwiGLU of gpt-oss (OpenAI, 2025), with a gate of at most 7, up in -7 .. 7, and one added to up."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def uniform_draw(seed: int, index: int) -> float:
    """Number ``index`` in [0, 1) of the stream ``seed``: SplitMix64's finaliser twice (Steele, Lea and Flood, 2014)."""
    golden, largest = 0x9E3779B97F4A7C15, 2**64 - 1
    state = _mix((seed & largest) ^ golden)
    return (_mix((state + index * golden) & largest) >> 11) / 2**53


def _mix(value: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor % 2**64
    return value ^ value >> 31


def sample(logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float, draw: float) -> int:
    """One token of a row: temperature, top-k, top-p, min-p, in this order, then the inverse of the CDF at ``draw``.

    The CDF runs over tokens from likely to unlikely, equals by id, where a filter is on, and by id where none is.
    ``temperature`` 0 takes the largest, the first of equals; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 filter nothing.
    """
    if temperature == 0.0:
        return int(logits.argmax())
    logits = logits.float()
    weights = ((logits - logits.max()).double() / temperature).exp()
    token_ids = torch.arange(weights.numel())
    if top_k > 0 or top_p < 1.0 or min_p > 0.0:
        weights, token_ids = torch.sort(weights, descending=True, stable=True)
        keep = min(top_k or weights.numel(), weights.numel())
        if top_p < 1.0:
            reaches = weights[:keep].cumsum(0) >= top_p * weights[:keep].sum()
            keep = int(reaches.nonzero()[0]) + 1
        if min_p > 0.0:
            keep = min(keep, int((weights >= min_p).sum()))
        weights, token_ids = weights[:keep], token_ids[:keep]
    cumulative = weights.cumsum(0)
    return int(token_ids[int((cumulative > draw * cumulative[-1]).nonzero()[0])])


def dense_gemm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x`` [rows, in] times the transpose of ``weight`` [out, in], plus ``bias`` [out]."""
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


def grouped_gemm(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Rows ``offsets[e] : offsets[e + 1]`` of ``x`` times the transpose of expert e's ``weight`` [experts, out, in]."""
    output = torch.zeros(x.shape[0], weight.shape[1], dtype=torch.float64)
    bounds = offsets.tolist()
    for expert, (start, end) in enumerate(pairwise(bounds)):
        output[start:end] = x[start:end].double() @ weight[expert].double().T
    return output


def quantised_gemm(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``x`` times the transpose of ``codes * scales``: codes [out, in], scales [out, groups] of equal length each."""
    group = codes.shape[1] // scales.shape[1]
    return x.double() @ (codes.double() * scales.double().repeat_interleave(group, dim=1)).T
