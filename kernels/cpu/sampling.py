"""Sampling on CPUs: a token per row of logits, each row by its own parameters, without sorting the vocabulary.

The same rule as ``engine.sampler``'s in torch: temperature, top-k, top-p, min-p, then the inverse of the cumulative
distribution, over token ids where no filter is on and over tokens from likely to unlikely, equals by id, where one is.
Weights and sums are float64; weights are summed in slices of 4,096 tokens, so that a row's token depends neither on its
neighbours nor on the number of threads.

How: every filter keeps the likeliest tokens, so that some distance below the largest logit bounds what can be drawn.
One pass finds the largest logits of every 32 tokens and of all, a second one weighs all tokens where the weight of all
matters, and only those near enough are collected, divided into buckets by their distance, and searched.

Top-p asks for a share of the weight of all, which is therefore estimated in float32 at first, with a bound on its
error. Only where that does not tell how many tokens are kept, or where they are very many, are all weighed in float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.logit_rows import check_logits


class RowSampling(NamedTuple):
    """Parameters of a row: ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch their filters off; ``draw`` is in [0, 1).

    A temperature of 0 is greedy: the largest logit, the lowest id of equals.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    draw: float


class _SamplingCall(ctypes.Structure):
    """Mirror of ``octavo::SamplingCall``."""

    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
    ]


def sample(library: NativeLibrary, logits: torch.Tensor, rows: Sequence[RowSampling]) -> list[int]:
    """A token id per row of float32 ``logits`` [num_rows, vocab_size] on the CPU, whose rows are contiguous."""
    check_logits(logits)
    num_rows, vocab_size = logits.shape
    if len(rows) != num_rows:
        raise ValueError(f"{len(rows)} rows of parameters for {num_rows} rows of logits")
    parameters = torch.tensor(rows, dtype=torch.float64)
    tokens = torch.empty(num_rows, dtype=torch.int64)
    call = _SamplingCall(
        logits.data_ptr(), logits.stride(0), num_rows, vocab_size, parameters.data_ptr(), tokens.data_ptr()
    )
    library.check(library.handle.octavo_sample(library.variant, torch.get_num_threads(), ctypes.byref(call)))
    return [int(token) for token in tokens.tolist()]
