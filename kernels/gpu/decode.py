"""Decode attention over pages: one query row per sequence, the keys of a sequence split among programs.

After "Flash-Decoding" (Dao et al., 2023): each program attends over one split of the visible positions for all query
heads of one KV head, packed into one tile so that every key and value is read once; ``kernels.gpu.reduce`` merges the
splits, and ``kernels.gpu.splits`` says how many there are.

Contract
    query               [num_tokens, num_q_heads, head_dim]; the row of sequence s is ``query_start_loc[s]``
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], any dtype that casts to the query's; int8 and
                        fp8 with scales (see ``kernels.quantisation``)
    output              like query; written for the sequences that have exactly one row, untouched for all others
    sinks               any float dtype [num_q_heads], or None
    metadata            see ``kernels.attention``; a sequence with one row and a length of 0 is padding and gets zeros

Numerics: see ``kernels.gpu.tile``. With a fixed plan, the tile of ``kernels.gpu.prefill`` and no fused products, a row
has the bits it would have in a prefill chunk of any size, beside any neighbours; see ``deterministic_tile_shape``.

The window bounds the loop: cost and pages read are those of the window, not of the sequence. Tested in Triton's
interpreter and compiled for GPUs; not yet run on one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionMetadata, KVPages, SharedPrefix
from kernels.gpu.attention_case import CASES, AttentionCase
from kernels.gpu.pages import check_shapes, page_arguments, side_of
from kernels.gpu.prefill import deterministic_tile_shape
from kernels.gpu.reduce import Parts, merge_parts
from kernels.gpu.splits import FIXED_SPLIT, MIN_SPLIT_TILES, SplitPlan, divide, num_multiprocessors
from kernels.gpu.tile import TileShape, attend_range, merge_nothing, merge_part, merged_rows, score_arguments
from kernels.gpu.variant import Variant, pointer
from kernels.quantisation import is_quantised


@triton.jit(do_not_specialize=["table_stride", "num_prefix_splits", "num_splits"])
def decode_kernel(
    output_ptr,
    parts_ptr,
    lse_ptr,
    query_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    block_table_ptr,
    prefix_lens_ptr,
    sinks_ptr,
    scale,
    softcap_log2,
    table_stride,
    num_prefix_splits,
    num_splits,
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
    SPLIT_TILES: tl.constexpr,
    IS_FIXED: tl.constexpr,
):
    """One split of one sequence for the ``GROUP`` query heads of one KV head.

    Grid: (num_seqs, num_kv_heads, num_splits). Without ``parts_ptr`` the result goes straight to ``output``; with it,
    and with ``lse_ptr``, to the sequence's slot there, after those of the prefix (see ``kernels.gpu.reduce``).
    ``prefix_lens`` [num_seqs], if given, are positions that others attend to.
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(query_start_loc_ptr + sequence)
    if tl.load(query_start_loc_ptr + sequence + 1) - row != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    first = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    if prefix_lens_ptr is not None:
        first = tl.load(prefix_lens_ptr + sequence)
    origin, length = divide(first, seq_len, num_splits, TILE, SPLIT_TILES, IS_FIXED)
    start = origin + split * length
    if start >= seq_len and split > 0:
        return

    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    q_heads = kv_head * GROUP + heads
    owned = heads < GROUP
    mask = owned[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = query_ptr + row.to(tl.int64) * query_token_stride + q_heads * query_head_stride
    part, lse = attend_range(
        tl.load(query_rows[:, None] + dims[None, :], mask=mask, other=0.0),
        tl.zeros([ROWS], tl.int32) + (seq_len - 1),
        tl.maximum(start, first // TILE * TILE),
        first,
        tl.minimum(start + length, seq_len),
        side_of(
            kv_head,
            key_pages_ptr,
            key_page_stride,
            key_head_stride,
            key_slot_stride,
            key_scales_ptr,
            key_scale_page_stride,
            key_scale_head_stride,
        ),
        side_of(
            kv_head,
            value_pages_ptr,
            value_page_stride,
            value_head_stride,
            value_slot_stride,
            value_scales_ptr,
            value_scale_page_stride,
            value_scale_head_stride,
        ),
        block_table_ptr + sequence.to(tl.int64) * table_stride,
        scale,
        softcap_log2,
        QUANTISED,
        BLOCK_SIZE,
        HEAD_DIM,
        0,  # one row per sequence: ``first`` is its window already
        HAS_SOFTCAP,
        TILE,
    )
    if parts_ptr is not None:
        slots = (sequence.to(tl.int64) * tl.num_programs(1) * GROUP + q_heads) * (num_prefix_splits + num_splits)
        slots += num_prefix_splits + split
        tl.store(lse_ptr + slots, lse, mask=owned)
        tl.store(parts_ptr + slots[:, None] * HEAD_DIM_PADDED + dims[None, :], part, mask=owned[:, None])
    else:
        peak, total, mixed = merge_nothing(sinks_ptr, q_heads, owned, ROWS, HEAD_DIM_PADDED)
        peak, total, mixed = merge_part(peak, total, mixed, part, lse)
        output_rows = output_ptr + row.to(tl.int64) * output_token_stride + q_heads * output_head_stride
        rows = merged_rows(total, mixed).to(output_ptr.dtype.element_ty)
        tl.store(output_rows[:, None] + dims[None, :], rows, mask=mask)


def decode_tile_shape(group: int, head_dim: int, dtype: torch.dtype, pages_dtype: torch.dtype) -> TileShape:
    """Tiles that compile without spills on sm_80 and sm_90; ``tl.dot`` wants at least 16 rows."""
    rows = max(16, triton.next_power_of_2(group))
    if dtype == torch.float32:
        return TileShape(rows, keys=16, num_warps=4, num_stages=1 if is_quantised(pages_dtype) else 2)
    is_wide = pages_dtype.itemsize > dtype.itemsize  # twice the memory for as many keys
    if head_dim <= 128:
        return TileShape(rows, keys=32 if is_wide else 64, num_warps=4, num_stages=3)
    if is_wide:
        return TileShape(rows, keys=16, num_warps=4, num_stages=2)
    if head_dim <= 256:  # codes on their way to the matrix units take registers
        is_coded = is_quantised(pages_dtype)
        return TileShape(rows, keys=32 if is_coded else 64, num_warps=4, num_stages=3 if is_coded else 2)
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
    sinks: torch.Tensor | None = None,
    is_deterministic: bool = False,
    tile: TileShape | None = None,
    plan: SplitPlan | None = None,
) -> None:
    """Attend for every sequence with exactly one query row, into its row of ``output``. Shapes: see the module.

    ``tile`` and ``plan`` are chosen where they are not given.
    """
    check_shapes(query, pages, sinks)
    num_seqs = metadata.seq_lens.shape[0]
    if num_seqs == 0:
        return
    choose_tile = deterministic_tile_shape if is_deterministic else decode_tile_shape
    shape = tile or choose_tile(query.shape[1] // pages.key.shape[1], query.shape[2], query.dtype, pages.key.dtype)
    if plan is None and is_deterministic:
        plan = SplitPlan.fixed(max_seq_len=metadata.max_seq_len, window=window, tile_keys=shape.keys)
    elif plan is None:
        plan = SplitPlan.balanced(
            num_sms=num_multiprocessors(query.device),
            num_seqs=num_seqs,
            num_kv_heads=pages.key.shape[1],
            max_seq_len=metadata.max_seq_len,
            window=window,
            tile_keys=shape.keys,
        )
    parts = Parts.empty(query, num_seqs, plan.num_splits) if plan.num_splits > 1 else None
    attend_splits(
        query,
        pages,
        metadata,
        output,
        parts,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        tile=shape,
        plan=plan,
    )
    if parts is not None:
        merge_parts(parts, metadata, output, window=window, tile_keys=shape.keys, plan=plan, sinks=sinks)


def attend_splits(
    query: torch.Tensor,
    pages: KVPages,
    metadata: AttentionMetadata,
    output: torch.Tensor,
    parts: Parts | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    tile: TileShape,
    plan: SplitPlan,
    prefix: SharedPrefix | None = None,
) -> None:
    """Every split of every sequence, into ``parts``, or, where there is but one each, into ``output``."""
    num_seqs, num_kv_heads = metadata.seq_lens.shape[0], pages.key.shape[1]
    decode_kernel[(num_seqs, num_kv_heads, plan.num_splits)](
        output,
        None if parts is None else parts.rows,
        None if parts is None else parts.lse,
        query,
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.block_table,
        None if prefix is None else prefix.prefix_lens,
        sinks if parts is None else None,
        table_stride=metadata.block_table.stride(0),
        num_prefix_splits=0 if parts is None else parts.num_prefix_splits,
        num_splits=plan.num_splits,
        query_token_stride=query.stride(0),
        query_head_stride=query.stride(1),
        output_token_stride=output.stride(0),
        output_head_stride=output.stride(1),
        GROUP=query.shape[1] // num_kv_heads,
        WINDOW=window or 0,
        ROWS=tile.rows,
        TILE=tile.keys,
        **score_arguments(scale, softcap),
        **page_arguments(pages),
        **plan.constants,
        **tile.options,
        enable_fp_fusion=not plan.is_fixed,
    )


def variants() -> list[Variant]:
    """Every case split; some whole, and some behind a shared prefix."""
    return [
        *(_variant(case, is_split=True) for case in CASES),
        *(_variant(case, is_split=False) for case in CASES if case.has_sinks or case.is_deterministic),
        *(_variant(case, is_split=True, has_prefix=True) for case in CASES if case.shares_prefixes),
    ]


def _variant(case: AttentionCase, *, is_split: bool, has_prefix: bool = False) -> Variant:
    choose_tile = deterministic_tile_shape if case.is_deterministic else decode_tile_shape
    tile = choose_tile(case.group, case.head_dim, case.dtype, case.pages_dtype)
    plan = SplitPlan(4, FIXED_SPLIT // tile.keys if case.is_deterministic else MIN_SPLIT_TILES, case.is_deterministic)
    types = case.types | {
        "output_ptr": pointer(case.dtype),
        "parts_ptr": "*fp32" if is_split else None,
        "lse_ptr": "*fp32" if is_split else None,
        "prefix_lens_ptr": "*i32" if has_prefix else None,
    }
    if is_split:
        types["sinks_ptr"] = None
    suffix = ":prefix" if has_prefix else "" if is_split else ":whole"
    constants = case.constants(tile) | {"WINDOW": case.window} | plan.constants
    return Variant.of(
        f"decode:{case.name}{suffix}",
        decode_kernel,
        types,
        constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        fuses=not case.is_deterministic,
    )
