"""Decode attention over pages: one query row per sequence, the keys of a sequence split among programs.

After "Flash-Decoding" (Dao et al., 2023): each program attends over one split of the visible positions for all query
heads of one KV head, packed into one tile so that every key and value is read once; ``kernels.gpu.reduce`` merges the
splits.

Contract
    query               [num_tokens, num_q_heads, head_dim]; the row of sequence s is ``query_start_loc[s]``
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], any dtype that casts to the query's; int8 and
                        fp8 with scales (see ``kernels.quantisation``)
    output              like query; written for the sequences that have exactly one row, untouched for all others
    metadata            see ``kernels.attention``

Numerics: see ``kernels.gpu.tile``. How a sequence is split depends on its own length, the window and the model's
shape, never on the rest of the batch: a row's bits are the same alone and in company.

The window bounds the loop: cost and pages read are those of the window, not of the sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionMetadata, KVPages
from kernels.gpu.reduce import merge_splits
from kernels.gpu.splits import SplitLimits, divide
from kernels.gpu.tile import ScoreScale, TileShape, attend_tile, check_shapes, padded_head_dim, scale_arguments
from kernels.quantisation import is_quantised


@triton.jit(do_not_specialize=["table_stride", "num_splits"])
def decode_kernel(
    output_ptr,
    partial_ptr,
    partial_lse_ptr,
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
    table_stride,
    num_splits,
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
    MIN_TILES: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """One split of one sequence for the ``GROUP`` query heads of one KV head.

    Grid: (num_seqs, num_kv_heads, num_splits). Without IS_SPLIT the result goes straight to ``output``; with it the
    normalized split goes to ``partial`` [num_seqs, num_q_heads, num_splits, HEAD_DIM_PADDED] and its log-sum-exp, in
    log2, to ``partial_lse`` [num_seqs, num_q_heads, num_splits], both float32.
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(query_start_loc_ptr + sequence)
    if tl.load(query_start_loc_ptr + sequence + 1) - row != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    first, first_tile, num_tiles, split_tiles = divide(seq_len, WINDOW, TILE, MIN_TILES, MAX_SPLITS)
    if split * split_tiles >= num_tiles:
        return

    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    q_heads = kv_head * GROUP + heads
    mask = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = query_ptr + row.to(tl.int64) * query_token_stride + q_heads * query_head_stride
    query = tl.load(query_rows[:, None] + dims[None, :], mask=mask, other=0.0)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)
    row_positions = tl.zeros([ROWS], tl.int32) + (seq_len - 1)
    start = (first_tile + split * split_tiles) * TILE
    end = tl.minimum(start + split_tiles * TILE, seq_len)
    for tile_start in range(start, end, TILE):
        peak, total, mixed = attend_tile(
            query,
            row_positions,
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
            WINDOW=0,  # one row per sequence: ``first`` is its window already
            HAS_SOFTCAP=HAS_SOFTCAP,
            TILE=TILE,
        )
    mixed = mixed / total[:, None]

    if IS_SPLIT:
        num_q_heads = tl.num_programs(1) * GROUP
        slots = (sequence.to(tl.int64) * num_q_heads + q_heads) * num_splits + split
        tl.store(partial_lse_ptr + slots, peak + tl.log2(total), mask=heads < GROUP)
        tl.store(partial_ptr + slots[:, None] * HEAD_DIM_PADDED + dims[None, :], mixed, mask=mask)
    else:
        output_rows = output_ptr + row.to(tl.int64) * output_token_stride + q_heads * output_head_stride
        tl.store(output_rows[:, None] + dims[None, :], mixed.to(output_ptr.dtype.element_ty), mask=mask)


def decode_tile_shape(group: int, head_dim: int, dtype: torch.dtype, pages_dtype: torch.dtype) -> TileShape:
    """Tiles that compile without spills on sm_80 and sm_90; ``tl.dot`` wants at least 16 rows."""
    rows = max(16, triton.next_power_of_2(group))
    if dtype == torch.float32:
        return TileShape(rows, keys=16, num_warps=4, num_stages=1 if is_quantised(pages_dtype) else 2)
    if head_dim <= 256:
        return TileShape(rows, keys=64, num_warps=4, num_stages=3 if head_dim <= 128 else 2)
    return TileShape(rows, keys=32, num_warps=8, num_stages=2)


def decode_attention(
    query: torch.Tensor,
    pages: KVPages,
    metadata: AttentionMetadata,
    output: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    tile: TileShape | None = None,
    limits: SplitLimits | None = None,
) -> None:
    """Attend for every sequence with exactly one query row, into its row of ``output``. Shapes: see the module."""
    check_shapes(query, pages)
    num_seqs = metadata.seq_lens.shape[0]
    _, num_q_heads, head_dim = query.shape
    _, num_kv_heads, block_size, _ = pages.key.shape
    if num_seqs == 0:
        return
    group = num_q_heads // num_kv_heads
    shape = tile or decode_tile_shape(group, head_dim, query.dtype, pages.key.dtype)
    key_scales, value_scales, *scale_strides = scale_arguments(pages)
    score = ScoreScale.of(scale, softcap)
    limits = limits or SplitLimits.of(num_kv_heads)
    num_splits = limits.most_splits(metadata.max_seq_len, window, shape.keys)
    is_split = num_splits > 1
    padded = padded_head_dim(head_dim)
    partial = partial_lse = output
    if is_split:
        partial = query.new_empty((num_seqs, num_q_heads, num_splits, padded), dtype=torch.float32)
        partial_lse = query.new_empty((num_seqs, num_q_heads, num_splits), dtype=torch.float32)
    decode_kernel[(num_seqs, num_kv_heads, num_splits)](
        output,
        partial,
        partial_lse,
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
        metadata.block_table.stride(0),
        num_splits,
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
        HEAD_DIM_PADDED=padded,
        WINDOW=window or 0,
        HAS_SOFTCAP=softcap is not None,
        ROWS=shape.rows,
        TILE=shape.keys,
        MIN_TILES=limits.min_tiles,
        MAX_SPLITS=limits.max_splits,
        IS_SPLIT=is_split,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
    if is_split:
        merge_splits(partial, partial_lse, metadata, output, window=window, tile_keys=shape.keys, limits=limits)
