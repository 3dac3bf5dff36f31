"""Merge the parts of decode attention by their log-sum-exp, in float32 ("Flash-Decoding", Dao et al., 2023).

Contract
    parts       float32 [num_seqs, num_q_heads, num_prefix_splits + num_splits, head_dim padded to a power of two]
    lse         float32 [num_seqs, num_q_heads, num_prefix_splits + num_splits], log2 of a part's sum of 2 ** score
    output      [num_tokens, num_q_heads, head_dim]; written for sequences with exactly one row
    sinks       any float dtype [num_q_heads], or None

Parts past a sequence's own division hold garbage and are not read. They are folded in order, one by one, after the
sink, so that the result does not depend on how many parts other sequences have. A single part comes through unchanged,
bit for bit, where there is no sink. Sequences without any position get zeros.

Where sequences share a prefix (``kernels.gpu.cascade``), the parts of the prefix come first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionMetadata, SharedPrefix
from kernels.gpu.attention_case import CASES
from kernels.gpu.pages import padded_head_dim
from kernels.gpu.splits import MIN_SPLIT_TILES, SplitPlan, divide
from kernels.gpu.tile import merge_nothing, merge_part, merged_rows
from kernels.gpu.variant import Variant, pointer

# What one warp of 32 or 64 lanes loads at once with the widest loads that lanes have, in float32.
LOADED_AT_ONCE = 256


@triton.jit
def load_part(lse_ptr, parts_ptr, slots, dims, owned, HEAD_DIM_PADDED: tl.constexpr):
    """Weight and rows of one part of each head."""
    rows = slots[:, None] * HEAD_DIM_PADDED + dims[None, :]
    lse = tl.load(lse_ptr + slots, mask=owned, other=float("-inf"))
    return lse, tl.load(parts_ptr + rows, mask=owned[:, None], other=0.0)


@triton.jit(do_not_specialize=["num_prefix_splits", "num_splits"])
def merge_parts_kernel(
    output_ptr,
    parts_ptr,
    lse_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    prefix_lens_ptr,
    sinks_ptr,
    num_q_heads,
    num_prefix_splits,
    num_splits,
    output_token_stride,
    output_head_stride,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT_TILES: tl.constexpr,
    IS_FIXED: tl.constexpr,
    HEADS: tl.constexpr,
):
    """``HEADS`` query heads of one sequence. Grid: (num_seqs, blocks of query heads)."""
    sequence = tl.program_id(0)
    row = tl.load(query_start_loc_ptr + sequence)
    if tl.load(query_start_loc_ptr + sequence + 1) - row != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    first = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0

    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    owned = heads < num_q_heads
    dims = tl.arange(0, HEAD_DIM_PADDED)
    slots = (sequence.to(tl.int64) * num_q_heads + heads) * (num_prefix_splits + num_splits)
    peak, total, mixed = merge_nothing(sinks_ptr, heads, owned, HEADS, HEAD_DIM_PADDED)
    if prefix_lens_ptr is not None:
        first = tl.load(prefix_lens_ptr + sequence)
        _, length = divide(0, first, num_prefix_splits, TILE, SPLIT_TILES, IS_FIXED)
        for split in range(0, tl.cdiv(first, length)):
            lse, part = load_part(lse_ptr, parts_ptr, slots + split, dims, owned, HEAD_DIM_PADDED)
            peak, total, mixed = merge_part(peak, total, mixed, part, lse)
        slots += num_prefix_splits
    origin, length = divide(first, seq_len, num_splits, TILE, SPLIT_TILES, IS_FIXED)
    for split in range(0, tl.cdiv(seq_len - origin, length)):
        lse, part = load_part(lse_ptr, parts_ptr, slots + split, dims, owned, HEAD_DIM_PADDED)
        peak, total, mixed = merge_part(peak, total, mixed, part, lse)
    output_rows = output_ptr + row.to(tl.int64) * output_token_stride + heads * output_head_stride
    rows = merged_rows(total, mixed).to(output_ptr.dtype.element_ty)
    tl.store(output_rows[:, None] + dims[None, :], rows, mask=owned[:, None] & (dims < HEAD_DIM)[None, :])


@dataclass(frozen=True, slots=True)
class Parts:
    """Room for the parts of a launch. Shapes: see the module."""

    rows: torch.Tensor
    lse: torch.Tensor
    num_prefix_splits: int

    @classmethod
    def empty(cls, query: torch.Tensor, num_seqs: int, num_splits: int, num_prefix_splits: int = 0) -> Parts:
        """Room for ``num_splits`` parts of each sequence's own and ``num_prefix_splits`` of a prefix that it shares."""
        shape = (num_seqs, query.shape[1], num_prefix_splits + num_splits)
        rows = query.new_empty((*shape, padded_head_dim(query.shape[2])), dtype=torch.float32)
        return cls(rows, query.new_empty(shape, dtype=torch.float32), num_prefix_splits)


def merge_parts(
    parts: Parts,
    metadata: AttentionMetadata,
    output: torch.Tensor,
    *,
    window: int | None,
    tile_keys: int,
    plan: SplitPlan,
    prefix: SharedPrefix | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Write the merged row of every sequence with one row; the division must be the one the parts were made with."""
    num_seqs, num_q_heads, _, padded = parts.rows.shape
    merge_parts_kernel[(num_seqs, triton.cdiv(num_q_heads, num_heads(padded)))](
        output,
        parts.rows,
        parts.lse,
        metadata.query_start_loc,
        metadata.seq_lens,
        None if prefix is None else prefix.prefix_lens,
        sinks,
        num_q_heads,
        parts.num_prefix_splits,
        plan.num_splits,
        output.stride(0),
        output.stride(1),
        HEAD_DIM=output.shape[2],
        HEAD_DIM_PADDED=padded,
        WINDOW=window or 0,
        TILE=tile_keys,
        **plan.constants,
        HEADS=num_heads(padded),
        num_warps=1,
        enable_fp_fusion=not plan.is_fixed,
    )


def num_heads(padded: int) -> int:
    """Heads to a program: as many as it loads at once."""
    return max(1, LOADED_AT_ONCE // padded)


def variants() -> list[Variant]:
    """For every case the merge of splits; for some, of a shared prefix too."""
    return [
        Variant.of(
            f"reduce:{case.name}{':prefix' if has_prefix else ''}",
            merge_parts_kernel,
            {
                "output_ptr": pointer(case.dtype),
                "parts_ptr": "*fp32",
                "lse_ptr": "*fp32",
                "query_start_loc_ptr": "*i32",
                "seq_lens_ptr": "*i32",
                "prefix_lens_ptr": "*i32" if has_prefix else None,
                "sinks_ptr": "*fp32" if case.has_sinks else None,
            },
            {
                "HEAD_DIM": case.head_dim,
                "HEAD_DIM_PADDED": padded_head_dim(case.head_dim),
                "WINDOW": case.window,
                "TILE": 64,
                "SPLIT_TILES": MIN_SPLIT_TILES,
                "IS_FIXED": case.is_deterministic,
                "HEADS": num_heads(padded_head_dim(case.head_dim)),
            },
            num_warps=1,
            fuses=not case.is_deterministic,
        )
        for case, has_prefix in [
            *((case, False) for case in CASES if case.dtype == case.pages_dtype),
            *((case, True) for case in CASES if case.shares_prefixes and case.dtype == case.pages_dtype),
        ]
    ]
