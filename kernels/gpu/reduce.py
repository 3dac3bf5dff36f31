"""Merge the splits of decode attention by their log-sum-exp, in float32 ("Flash-Decoding", Dao et al., 2023).

Contract
    partial       float32 [num_seqs, num_q_heads, num_splits, head_dim padded to a power of two], each normalized
    partial_lse   float32 [num_seqs, num_q_heads, num_splits], log2 of the sum of 2 ** score of the split
    output        [num_tokens, num_q_heads, head_dim]; written for sequences with exactly one row

Splits past a sequence's own division hold garbage and are not read. They are added in order, one by one, so that the
result does not depend on how many splits other sequences have. A single split comes through unchanged, bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionMetadata
from kernels.gpu.splits import SplitLimits, divide


@triton.jit(do_not_specialize=["num_splits"])
def merge_splits_kernel(
    output_ptr,
    partial_ptr,
    partial_lse_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    num_splits,
    output_token_stride,
    output_head_stride,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """One query head of one sequence. Grid: (num_seqs, num_q_heads)."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(query_start_loc_ptr + sequence)
    if tl.load(query_start_loc_ptr + sequence + 1) - row != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    _, _, num_tiles, split_tiles = divide(seq_len, WINDOW, TILE, MIN_TILES, MAX_SPLITS)
    used_splits = tl.cdiv(num_tiles, split_tiles)

    first_slot = (sequence.to(tl.int64) * tl.num_programs(1) + head) * num_splits
    splits = tl.arange(0, MAX_SPLITS)
    lse = tl.load(partial_lse_ptr + first_slot + splits, mask=splits < used_splits, other=float("-inf"))
    peak = tl.max(lse, axis=0)

    dims = tl.arange(0, HEAD_DIM_PADDED)
    total = 0.0
    mixed = tl.zeros([HEAD_DIM_PADDED], tl.float32)
    for split in range(0, used_splits):
        weight = tl.exp2(tl.load(partial_lse_ptr + first_slot + split) - peak)
        part = tl.load(partial_ptr + (first_slot + split) * HEAD_DIM_PADDED + dims, mask=dims < HEAD_DIM, other=0.0)
        total += weight
        mixed += weight * part
    output_row = output_ptr + row.to(tl.int64) * output_token_stride + head * output_head_stride
    tl.store(output_row + dims, (mixed / total).to(output_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


def merge_splits(
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    metadata: AttentionMetadata,
    output: torch.Tensor,
    *,
    window: int | None,
    tile_keys: int,
    limits: SplitLimits,
) -> None:
    """Write the merged row of every sequence with one row; the division must be the one ``partial`` was made with."""
    num_seqs, num_q_heads, num_splits, padded = partial.shape
    merge_splits_kernel[(num_seqs, num_q_heads)](
        output,
        partial,
        partial_lse,
        metadata.query_start_loc,
        metadata.seq_lens,
        num_splits,
        output.stride(0),
        output.stride(1),
        HEAD_DIM=output.shape[2],
        HEAD_DIM_PADDED=padded,
        WINDOW=window or 0,
        TILE=tile_keys,
        MIN_TILES=limits.min_tiles,
        MAX_SPLITS=limits.max_splits,
        num_warps=1 if padded <= 128 else 2,
        enable_fp_fusion=True,
    )
