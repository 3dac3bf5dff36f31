"""Quantised KV rows: one byte per element, and one float32 scale per token and KV head.

A row of K or V becomes codes with ``row = scale * code``, where ``scale`` is the row's largest magnitude over the
largest code: symmetric, so that 0 stays 0. Every backend computes exactly this, in float32:

    scale = absmax / largest        correctly rounded; 0 for a row of zeros, whose codes are 0
    code  = row / scale             correctly rounded, clamped to +-largest, rounded to nearest even

A row with a NaN or an infinity has no scale: its scale is NaN and its codes are 0, so that all of it reads as NaN and
the trouble shows, as it does with float pages.
"""

from __future__ import annotations

import torch

LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SCALE_DTYPE = torch.float32


def is_quantised(dtype: torch.dtype) -> bool:
    """Whether pages of this dtype come with scales."""
    return dtype in LARGEST_CODE


def quantise(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of ``dtype``, shaped like ``rows``, and float32 scales of its shape without the last dimension."""
    largest = LARGEST_CODE[dtype]
    rows = rows.float()
    absmax = rows.abs().amax(dim=-1)
    is_finite = absmax < float("inf")  # false for NaN too
    scales = torch.where(is_finite, absmax / largest, float("nan"))
    quotients = rows / torch.where(scales > 0, scales, 1.0)[..., None]
    codes = torch.where(is_finite[..., None], quotients, 0.0).clamp(-largest, largest)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def dequantise(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Float32 rows from codes [..., head_dim] and scales [...]; each is rounded once, in the product."""
    return codes.float() * scales[..., None]
