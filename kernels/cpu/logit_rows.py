"""Rows of logits as the native functions take them: which tensors these read, and which rows of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LARGEST_VOCABULARY = 2**31 - 2**13


def check_logits(logits: torch.Tensor) -> None:
    """Raise ValueError where ``logits`` [num_rows, vocab_size] are not what a native function takes."""
    vocab_size = logits.shape[1]
    if logits.dtype != torch.float32 or not logits.is_cpu or not 0 < vocab_size <= LARGEST_VOCABULARY:
        raise ValueError(
            f"logits {list(logits.shape)} {logits.dtype} on {logits.device} must be float32 on the CPU, "
            f"of 1 to {LARGEST_VOCABULARY} tokens"
        )
    if vocab_size > 1 and logits.stride(1) != 1:
        raise ValueError(f"rows of logits must be contiguous; their strides are {logits.stride()}")


def chosen_rows(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """``rows`` as int64; ValueError where one is not in ``logits``."""
    if rows and not 0 <= min(rows) <= max(rows) < len(logits):
        raise ValueError(f"rows {min(rows)} to {max(rows)} must be in 0 .. {len(logits) - 1}")
    return torch.tensor(rows, dtype=torch.int64)
