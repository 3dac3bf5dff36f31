"""Log probabilities on CPUs: of a token per row of logits, its rank, and the most likely tokens.

A token's value is its logit less the row's largest, less the logarithm of the sum of all weights, computed in float64
and rounded once to float32. Weights are summed in slices of 4,096 tokens, so that a row's bits depend neither on its
neighbours nor on the number of threads, nor on what else is told of it; builds for other instruction sets may differ
from each other in the last bit. Tokens are ordered by their logits, equals by id. NaN counts as -inf, of several +inf
each has an equal share, and a row of nothing else is one of equal logits. What has no probability is -inf.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.logit_rows import check_logits, chosen_rows


class _LogprobsCall(ctypes.Structure):
    """Mirror of ``octavo::LogprobsCall``."""

    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("num_top", ctypes.c_int64),
        ("values", ctypes.c_void_p),
        ("top_ids", ctypes.c_void_p),
        ("ranks", ctypes.c_void_p),
    ]


def logprobs(
    library: NativeLibrary, logits: torch.Tensor, rows: Sequence[int], token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one of int64 ``token_ids`` for each of ``rows`` of float32 ``logits`` [num_rows, vocab_size] on the CPU.

    Float32 values [len(rows), 1 + num_top], of the token itself and of the most likely ones; their int64 ids
    [len(rows), num_top]; int64 ranks [len(rows)], 1 for the most likely. ``num_top`` is at most the vocabulary.
    """
    check_logits(logits)
    vocab_size = logits.shape[1]
    if token_ids.dtype != torch.int64 or token_ids.shape != (len(rows),):
        raise ValueError(f"token ids {list(token_ids.shape)} {token_ids.dtype} must be int64 [{len(rows)}]")
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise ValueError(f"token ids {token_ids.tolist()} must be in 0 .. {vocab_size - 1}")
    if not 0 <= num_top <= vocab_size:
        raise ValueError(f"{num_top} most likely tokens must be 0 to {vocab_size}")
    indices, token_ids = chosen_rows(logits, rows), token_ids.contiguous()
    values = torch.empty(len(rows), 1 + num_top)
    top_ids = torch.empty(len(rows), num_top, dtype=torch.int64)
    ranks = torch.empty(len(rows), dtype=torch.int64)
    call = _LogprobsCall(
        logits.data_ptr(),
        logits.stride(0),
        vocab_size,
        indices.data_ptr(),
        token_ids.data_ptr(),
        len(rows),
        num_top,
        values.data_ptr(),
        top_ids.data_ptr(),
        ranks.data_ptr(),
    )
    library.check(library.handle.octavo_logprobs(library.variant, torch.get_num_threads(), ctypes.byref(call)))
    return values, top_ids, ranks
