"""Attention of ragged chunks over pages: any number of query rows per sequence, cached history included.

After "FlashAttention-2" (Dao, 2023) over the block tables of "PagedAttention" (Kwon et al., 2023). The new tokens' own
keys and values must be in their pages already, so that history and chunk are read the same way.

A program takes one block of consecutive tokens of one sequence, with all the query heads of one KV head: ``rows`` =
tokens x heads. Blocks are numbered through without asking the device how long each sequence is: sequence s starts at
block ``query_start_loc[s] // block_tokens + s``, which leaves it enough numbers, and at most one to spare; a program
finds its sequence by binary search, and one whose block is to spare ends at once.

Contract
    query               [num_tokens, num_q_heads, head_dim]
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], any dtype that casts to the query's; int8 and
                        fp8 with scales (see ``kernels.quantisation``)
    output              like query; written for sequences with at least ``min_query_len`` rows, untouched elsewhere
    metadata            see ``kernels.attention``

Numerics: see ``kernels.gpu.tile``; a row's result does not depend on how its prompt was cut into chunks, beyond what
the device's matrix units do with other rows of a tile. Causality and the window bound the loop, not only the mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionMetadata, KVPages
from kernels.gpu.tile import ScoreScale, TileShape, attend_tile, check_shapes, padded_head_dim, scale_arguments
from kernels.quantisation import is_quantised


@triton.jit
def find_sequence(query_start_loc_ptr, num_seqs, block, BLOCK_TOKENS: tl.constexpr):
    """The last sequence whose first block is ``block`` or before it."""
    low = 0
    high = num_seqs - 1
    while low < high:
        middle = (low + high + 1) // 2
        starts_at = tl.load(query_start_loc_ptr + middle) // BLOCK_TOKENS + middle
        low = tl.where(starts_at <= block, middle, low)
        high = tl.where(starts_at <= block, high, middle - 1)
    return low


@triton.jit(do_not_specialize=["num_seqs", "table_stride", "min_query_len"])
def prefill_kernel(
    output_ptr,
    query_ptr,
    key_pages_ptr,
    value_pages_ptr,
    key_scales_ptr,
    value_scales_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    block_table_ptr,
    scale,
    softcap_log2,
    num_seqs,
    min_query_len,
    table_stride,
    query_token_stride,
    query_head_stride,
    output_token_stride,
    output_head_stride,
    key_page_stride,
    key_head_stride,
    key_slot_stride,
    value_page_stride,
    value_head_stride,
    value_slot_stride,
    key_scale_page_stride,
    key_scale_head_stride,
    value_scale_page_stride,
    value_scale_head_stride,
    QUANTISED: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """``ROWS // GROUP`` tokens of one sequence for one KV head. Grid: (blocks, num_kv_heads), last blocks first."""
    BLOCK_TOKENS: tl.constexpr = ROWS // GROUP
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = find_sequence(query_start_loc_ptr, num_seqs, block, BLOCK_TOKENS)
    query_start = tl.load(query_start_loc_ptr + sequence)
    query_len = tl.load(query_start_loc_ptr + sequence + 1) - query_start
    block_start = (block - (query_start // BLOCK_TOKENS + sequence)) * BLOCK_TOKENS
    if block_start >= query_len or query_len < min_query_len:
        return
    context_len = tl.load(seq_lens_ptr + sequence) - query_len

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    tokens = block_start + rows // GROUP
    q_heads = kv_head * GROUP + rows % GROUP
    owned = (rows < BLOCK_TOKENS * GROUP) & (tokens < query_len)
    mask = owned[:, None] & (dims < HEAD_DIM)[None, :]
    token_rows = (query_start + tokens).to(tl.int64)
    query_rows = query_ptr + token_rows * query_token_stride + q_heads * query_head_stride
    query = tl.load(query_rows[:, None] + dims[None, :], mask=mask, other=0.0)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)
    first = tl.maximum(context_len + block_start - WINDOW + 1, 0) if WINDOW > 0 else 0
    end = context_len + tl.minimum(block_start + BLOCK_TOKENS, query_len)
    for tile_start in range(first // TILE * TILE, end, TILE):
        peak, total, mixed = attend_tile(
            query,
            context_len + tokens,
            peak,
            total,
            mixed,
            tile_start,
            first,
            end,
            key_pages_ptr + kv_head * key_head_stride,
            value_pages_ptr + kv_head * value_head_stride,
            key_scales_ptr + kv_head * key_scale_head_stride,
            value_scales_ptr + kv_head * value_scale_head_stride,
            block_table_ptr + sequence.to(tl.int64) * table_stride,
            key_page_stride,
            key_slot_stride,
            value_page_stride,
            value_slot_stride,
            key_scale_page_stride,
            value_scale_page_stride,
            scale,
            softcap_log2,
            QUANTISED=QUANTISED,
            BLOCK_SIZE=BLOCK_SIZE,
            HEAD_DIM=HEAD_DIM,
            WINDOW=WINDOW,
            HAS_SOFTCAP=HAS_SOFTCAP,
            TILE=TILE,
        )
    # Rows past the end of the chunk may see no key; they are not stored, and must not divide by zero.
    mixed = mixed / tl.where(owned, total, 1.0)[:, None]
    output_rows = output_ptr + token_rows * output_token_stride + q_heads * output_head_stride
    tl.store(output_rows[:, None] + dims[None, :], mixed.to(output_ptr.dtype.element_ty), mask=mask)


def prefill_tile_shape(group: int, head_dim: int, dtype: torch.dtype, pages_dtype: torch.dtype) -> TileShape:
    """Tiles that compile without spills on sm_80 and sm_90 and fit the shared memory of sm_86."""
    at_least = triton.next_power_of_2(group)
    if dtype == torch.float32:  # no matrix unit multiplies in full precision: every product takes registers
        return TileShape(max(16, at_least), keys=16, num_warps=4, num_stages=1 if is_quantised(pages_dtype) else 2)
    if head_dim <= 128:
        return TileShape(max(128, at_least), keys=64, num_warps=8, num_stages=2)
    keys = 16 if is_quantised(pages_dtype) else 32  # codes on their way to the matrix units take registers
    return TileShape(max(64 if head_dim <= 256 else 32, at_least), keys=keys, num_warps=8, num_stages=2)


def prefill_attention(
    query: torch.Tensor,
    pages: KVPages,
    metadata: AttentionMetadata,
    output: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    min_query_len: int = 1,
    tile: TileShape | None = None,
) -> None:
    """Attend for every sequence with at least ``min_query_len`` query rows, into ``output``. Shapes: see the module."""
    check_shapes(query, pages)
    num_seqs = metadata.seq_lens.shape[0]
    num_tokens, num_q_heads, head_dim = query.shape
    _, num_kv_heads, block_size, _ = pages.key.shape
    if num_seqs == 0 or num_tokens == 0:
        return
    group = num_q_heads // num_kv_heads
    shape = tile or prefill_tile_shape(group, head_dim, query.dtype, pages.key.dtype)
    key_scales, value_scales, *scale_strides = scale_arguments(pages)
    score = ScoreScale.of(scale, softcap)
    num_blocks = num_tokens // (shape.rows // group) + num_seqs
    prefill_kernel[(num_blocks, num_kv_heads)](
        output,
        query,
        pages.key,
        pages.value,
        key_scales,
        value_scales,
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.block_table,
        score.scale,
        score.softcap_log2,
        num_seqs,
        min_query_len,
        metadata.block_table.stride(0),
        query.stride(0),
        query.stride(1),
        output.stride(0),
        output.stride(1),
        *pages.key.stride()[:3],
        *pages.value.stride()[:3],
        *scale_strides,
        QUANTISED=pages.key_scales is not None,
        GROUP=group,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=padded_head_dim(head_dim),
        WINDOW=window or 0,
        HAS_SOFTCAP=softcap is not None,
        ROWS=shape.rows,
        TILE=shape.keys,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
