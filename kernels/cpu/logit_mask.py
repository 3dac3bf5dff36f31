"""Masks on CPUs: logits of tokens that may not come become minus infinity, NaN included; others are not touched."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.logit_rows import check_logits, chosen_rows


class _MaskCall(ctypes.Structure):
    """Mirror of ``octavo::MaskCall``."""

    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("words", ctypes.c_void_p),
    ]


def mask_logits(library: NativeLibrary, logits: torch.Tensor, rows: Sequence[int], words: torch.Tensor) -> None:
    """Mask ``rows``, no two alike, of float32 ``logits`` [num_rows, vocab_size] on the CPU.

    int32 ``words`` [len(rows), vocab_size / 32, rounded up]: a set bit allows a token, the lowest one the first of 32.
    """
    check_logits(logits)
    vocab_size = logits.shape[1]
    expected = (len(rows), -(-vocab_size // 32))
    if words.dtype != torch.int32 or not words.is_cpu or words.shape != expected:
        raise ValueError(
            f"words {list(words.shape)} {words.dtype} on {words.device} must be int32 {list(expected)} on the CPU"
        )
    if len(set(rows)) < len(rows):
        raise ValueError(f"rows {list(rows)} must not repeat")
    indices, words = chosen_rows(logits, rows), words.contiguous()
    call = _MaskCall(logits.data_ptr(), logits.stride(0), vocab_size, indices.data_ptr(), len(rows), words.data_ptr())
    library.check(library.handle.octavo_mask_logits(library.variant, torch.get_num_threads(), ctypes.byref(call)))
