"""Attention of ragged chunks over pages: any number of query rows per sequence, cached history included.

After "FlashAttention-2" (Dao, 2023) over the block tables of "PagedAttention" (Kwon et al., 2023). The new tokens' own
keys and values must be in their pages already, so that history and chunk are read the same way.

A program takes one block of consecutive tokens of one sequence, with all the query heads of one KV head: ``rows`` =
tokens x heads. Blocks are numbered through without asking the device how long each sequence is: sequence s starts at
block ``query_start_loc[s] // block_tokens + s``, which leaves it enough numbers, and at most one to spare; a program
finds its sequence by binary search, and one whose block is to spare ends at once. A decode is a sequence of one row and
may be among them, slower than in ``kernels.gpu.decode`` where its history is long.

Contract
    query               [num_tokens, num_q_heads, head_dim]
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], any dtype that casts to the query's; int8 and
                        fp8 with scales (see ``kernels.quantisation``)
    output              like query; written for sequences with at least ``min_query_len`` rows, untouched elsewhere
    sinks               any float dtype [num_q_heads], or None
    metadata            see ``kernels.attention``; rows before position 0 are padding and get zeros

Numerics: see ``kernels.gpu.tile``; a row's result does not depend on how its prompt was cut into chunks, beyond what
the device's matrix units do with other rows of a tile. Deterministic launches merge what fixed spans of positions give,
as the fixed splits of decode do, so that chunk and decode agree bit for bit. Causality and the window bound the loop,
not only the mask. Tested in Triton's interpreter and compiled for GPUs; not yet run on one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionMetadata, KVPages
from kernels.gpu.attention_case import CASES, AttentionCase
from kernels.gpu.pages import check_shapes, page_arguments, side_of
from kernels.gpu.splits import FIXED_SPLIT
from kernels.gpu.tile import TileShape, attend_range, merge_nothing, merge_part, merged_rows, score_arguments
from kernels.gpu.variant import Variant, pointer
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
    query_start_loc_ptr,
    seq_lens_ptr,
    block_table_ptr,
    sinks_ptr,
    scale,
    softcap_log2,
    num_seqs,
    min_query_len,
    table_stride,
    query_token_stride,
    query_head_stride,
    output_token_stride,
    output_head_stride,
    key_pages_ptr,
    value_pages_ptr,
    key_scales_ptr,
    value_scales_ptr,
    key_page_stride,
    key_head_stride,
    key_slot_stride,
    key_scale_page_stride,
    key_scale_head_stride,
    value_page_stride,
    value_head_stride,
    value_slot_stride,
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
    SPAN: tl.constexpr,
):
    """``ROWS // GROUP`` tokens of one sequence for one KV head. Grid: (blocks, num_kv_heads), last blocks first.

    ``SPAN`` > 0, a multiple of TILE: merge the parts of spans of that many positions; 0: one part is all.
    """
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

    keys = side_of(
        kv_head,
        key_pages_ptr,
        key_page_stride,
        key_head_stride,
        key_slot_stride,
        key_scales_ptr,
        key_scale_page_stride,
        key_scale_head_stride,
    )
    values = side_of(
        kv_head,
        value_pages_ptr,
        value_page_stride,
        value_head_stride,
        value_slot_stride,
        value_scales_ptr,
        value_scale_page_stride,
        value_scale_head_stride,
    )
    table_row_ptr = block_table_ptr + sequence.to(tl.int64) * table_stride
    first = tl.maximum(context_len + block_start - WINDOW + 1, 0) if WINDOW > 0 else 0
    start = first // TILE * TILE
    end = context_len + tl.minimum(block_start + BLOCK_TOKENS, query_len)
    peak, total, mixed = merge_nothing(sinks_ptr, q_heads, owned, ROWS, HEAD_DIM_PADDED)
    if SPAN > 0:
        for span_start in range(first // SPAN * SPAN, end, SPAN):
            part, lse = attend_range(
                query,
                context_len + tokens,
                tl.maximum(span_start, start),
                first,
                tl.minimum(span_start + SPAN, end),
                keys,
                values,
                table_row_ptr,
                scale,
                softcap_log2,
                QUANTISED,
                BLOCK_SIZE,
                HEAD_DIM,
                WINDOW,
                HAS_SOFTCAP,
                TILE,
            )
            peak, total, mixed = merge_part(peak, total, mixed, part, lse)
    else:
        part, lse = attend_range(
            query,
            context_len + tokens,
            start,
            first,
            end,
            keys,
            values,
            table_row_ptr,
            scale,
            softcap_log2,
            QUANTISED,
            BLOCK_SIZE,
            HEAD_DIM,
            WINDOW,
            HAS_SOFTCAP,
            TILE,
        )
        peak, total, mixed = merge_part(peak, total, mixed, part, lse)
    output_rows = output_ptr + token_rows * output_token_stride + q_heads * output_head_stride
    tl.store(output_rows[:, None] + dims[None, :], merged_rows(total, mixed).to(output_ptr.dtype.element_ty), mask=mask)


def prefill_tile_shape(group: int, head_dim: int, dtype: torch.dtype, pages_dtype: torch.dtype) -> TileShape:
    """Tiles that compile without spills on sm_80 and sm_90 and fit the shared memory of sm_86."""
    at_least = triton.next_power_of_2(group)
    if dtype == torch.float32:  # no matrix unit multiplies in full precision: every product takes registers
        return TileShape(max(16, at_least), keys=16, num_warps=4, num_stages=1 if is_quantised(pages_dtype) else 2)
    is_wide = pages_dtype.itemsize > dtype.itemsize  # twice the memory for as many keys
    if head_dim <= 128:
        return TileShape(max(128, at_least), keys=32 if is_wide else 64, num_warps=8, num_stages=2)
    # codes on their way to the matrix units take registers
    keys = 16 if is_wide or is_quantised(pages_dtype) else 32
    return TileShape(max(64 if head_dim <= 256 else 32, at_least), keys=keys, num_warps=8, num_stages=2)


def deterministic_tile_shape(group: int, head_dim: int, dtype: torch.dtype, pages_dtype: torch.dtype) -> TileShape:
    """The tile that decode and prefill share where they must agree bit for bit: what is merged takes registers too."""
    shape = prefill_tile_shape(group, head_dim, dtype, pages_dtype)
    rows = max(min(shape.rows, 64), triton.next_power_of_2(group))
    keys = shape.keys if head_dim <= 128 else 16
    return TileShape(rows, keys, num_warps=shape.num_warps, num_stages=shape.num_stages)


def prefill_attention(
    query: torch.Tensor,
    pages: KVPages,
    metadata: AttentionMetadata,
    output: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    min_query_len: int = 1,
    is_deterministic: bool = False,
    tile: TileShape | None = None,
    span: int = FIXED_SPLIT,
) -> None:
    """Attend for every sequence with at least ``min_query_len`` query rows, into ``output``. Shapes: see the module.

    ``tile`` is chosen where it is not given; ``span`` is the positions to a part of a deterministic launch.
    """
    check_shapes(query, pages, sinks)
    num_seqs = metadata.seq_lens.shape[0]
    num_tokens, num_q_heads, head_dim = query.shape
    num_kv_heads = pages.key.shape[1]
    if num_seqs == 0 or num_tokens == 0:
        return
    group = num_q_heads // num_kv_heads
    choose_tile = deterministic_tile_shape if is_deterministic else prefill_tile_shape
    shape = tile or choose_tile(group, head_dim, query.dtype, pages.key.dtype)
    prefill_kernel[(num_tokens // (shape.rows // group) + num_seqs, num_kv_heads)](
        output,
        query,
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.block_table,
        sinks,
        num_seqs=num_seqs,
        min_query_len=min_query_len,
        table_stride=metadata.block_table.stride(0),
        query_token_stride=query.stride(0),
        query_head_stride=query.stride(1),
        output_token_stride=output.stride(0),
        output_head_stride=output.stride(1),
        GROUP=group,
        WINDOW=window or 0,
        ROWS=shape.rows,
        TILE=shape.keys,
        SPAN=span if is_deterministic else 0,
        **score_arguments(scale, softcap),
        **page_arguments(pages),
        **shape.options,
        enable_fp_fusion=not is_deterministic,
    )


def variants() -> list[Variant]:
    """Every case."""
    return [_variant(case) for case in CASES]


def _variant(case: AttentionCase) -> Variant:
    choose_tile = deterministic_tile_shape if case.is_deterministic else prefill_tile_shape
    tile = choose_tile(case.group, case.head_dim, case.dtype, case.pages_dtype)
    constants = case.constants(tile) | {"WINDOW": case.window, "SPAN": FIXED_SPLIT if case.is_deterministic else 0}
    types = case.types | {"output_ptr": pointer(case.dtype)}
    return Variant.of(
        f"prefill:{case.name}",
        prefill_kernel,
        types,
        constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        fuses=not case.is_deterministic,
    )
