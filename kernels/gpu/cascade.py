"""Decode attention of sequences that share a prefix: its pages are read once for all of them.

After "Hydragen" (Juravsky et al., 2024) and FlashInfer's cascades (Ye et al., 2024). The rows of all sequences of a
group are packed into one tile and attend over the pages they share, split as decode splits; ``kernels.gpu.decode``
attends over each sequence's own positions; ``kernels.gpu.reduce`` merges both by log-sum-exp. Which sequences form
groups is decided on the host: see ``kernels.gpu.shared_prefix``.

Contract
    query               [num_tokens, num_q_heads, head_dim]; the row of sequence s is ``query_start_loc[s]``
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], any dtype that casts to the query's; int8 and
                        fp8 with scales (see ``kernels.quantisation``)
    output              like query; written for the sequences that have exactly one row, untouched for all others
    sinks               any float dtype [num_q_heads], or None
    metadata            see ``kernels.attention``; ``prefix`` is its ``shared_prefix``

Numerics: see ``kernels.gpu.tile``. Full attention only: no row may have a window. A row's bits depend on whom it shares
with, so the deterministic mode has no cascades. Sequences in no group cost what they cost in decode. Tested in
Triton's interpreter and compiled for GPUs; not yet run on one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionMetadata, KVPages, SharedPrefix
from kernels.gpu.attention_case import CASES, AttentionCase
from kernels.gpu.decode import attend_splits, decode_tile_shape
from kernels.gpu.pages import check_shapes, page_arguments, side_of
from kernels.gpu.prefill import prefill_tile_shape
from kernels.gpu.reduce import Parts, merge_parts
from kernels.gpu.splits import MIN_SPLIT_TILES, SplitPlan, divide, num_multiprocessors
from kernels.gpu.tile import TileShape, attend_range, score_arguments
from kernels.gpu.variant import Variant


@triton.jit(do_not_specialize=["table_stride", "num_blocks", "num_prefix_splits", "num_splits"])
def prefix_kernel(
    parts_ptr,
    lse_ptr,
    query_ptr,
    query_start_loc_ptr,
    block_table_ptr,
    members_ptr,
    group_starts_ptr,
    prefix_lens_ptr,
    scale,
    softcap_log2,
    table_stride,
    num_blocks,
    num_prefix_splits,
    num_splits,
    query_token_stride,
    query_head_stride,
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
    HAS_SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DIVIDED_TILE: tl.constexpr,
    SPLIT_TILES: tl.constexpr,
):
    """One split of one group's prefix, for ``ROWS // GROUP`` members and the query heads of one KV head.

    Grid: (groups x ``num_blocks`` of members, num_kv_heads, num_prefix_splits). Parts go to the members' first slots
    (see ``kernels.gpu.reduce``). ``DIVIDED_TILE`` is what the prefix is divided by, a multiple of ``TILE``.
    """
    BLOCK_MEMBERS: tl.constexpr = ROWS // GROUP
    group = tl.program_id(0) // num_blocks
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    group_end = tl.load(group_starts_ptr + group + 1)
    block_start = tl.load(group_starts_ptr + group) + tl.program_id(0) % num_blocks * BLOCK_MEMBERS
    if block_start >= group_end:
        return
    one_member = tl.load(members_ptr + block_start)
    prefix_len = tl.load(prefix_lens_ptr + one_member)
    _, length = divide(0, prefix_len, num_prefix_splits, DIVIDED_TILE, SPLIT_TILES, False)
    start = split * length
    if start >= prefix_len:
        return

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    members = block_start + rows // GROUP
    owned = (rows < BLOCK_MEMBERS * GROUP) & (members < group_end)
    sequences = tl.load(members_ptr + members, mask=owned, other=0).to(tl.int64)
    tokens = tl.load(query_start_loc_ptr + sequences, mask=owned, other=0).to(tl.int64)
    q_heads = kv_head * GROUP + rows % GROUP
    mask = owned[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = query_ptr + tokens * query_token_stride + q_heads * query_head_stride
    part, lse = attend_range(
        tl.load(query_rows[:, None] + dims[None, :], mask=mask, other=0.0),
        tl.zeros([ROWS], tl.int32) + prefix_len,  # every member is past the prefix
        start,
        0,
        tl.minimum(start + length, prefix_len),
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
        block_table_ptr + one_member.to(tl.int64) * table_stride,
        scale,
        softcap_log2,
        QUANTISED,
        BLOCK_SIZE,
        HEAD_DIM,
        0,
        HAS_SOFTCAP,
        TILE,
    )
    slots = (sequences * tl.num_programs(1) * GROUP + q_heads) * (num_prefix_splits + num_splits) + split
    tl.store(lse_ptr + slots, lse, mask=owned)
    tl.store(parts_ptr + slots[:, None] * HEAD_DIM_PADDED + dims[None, :], part, mask=owned[:, None])


def prefix_tile_shape(group: int, head_dim: int, dtype: torch.dtype, pages_dtype: torch.dtype) -> TileShape:
    """Rows as in prefill, keys as in decode, whose division the merge shares, or half as many where heads are long."""
    rows = prefill_tile_shape(group, head_dim, dtype, pages_dtype)
    keys = decode_tile_shape(group, head_dim, dtype, pages_dtype).keys
    keys = keys if head_dim <= 128 else min(keys, 32)
    return TileShape(min(rows.rows, max(64, triton.next_power_of_2(group))), keys, num_warps=8, num_stages=2)


def cascade_attention(
    query: torch.Tensor,
    pages: KVPages,
    metadata: AttentionMetadata,
    output: torch.Tensor,
    prefix: SharedPrefix,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attend for every sequence with exactly one query row, into its row of ``output``. Shapes: see the module."""
    check_shapes(query, pages, sinks)
    num_seqs, num_kv_heads = metadata.seq_lens.shape[0], pages.key.shape[1]
    group = query.shape[1] // num_kv_heads
    sizes = (group, query.shape[2], query.dtype, pages.key.dtype)
    tile, prefix_tile = decode_tile_shape(*sizes), prefix_tile_shape(*sizes)
    num_groups = prefix.group_starts.shape[0] - 1
    num_blocks = triton.cdiv(prefix.largest_group, prefix_tile.rows // group)
    num_sms = num_multiprocessors(query.device)
    own, shared = (
        SplitPlan.balanced(
            num_sms=num_sms,
            num_seqs=num_rows,
            num_kv_heads=num_kv_heads,
            max_seq_len=longest,
            window=None,
            tile_keys=tile.keys,
        )
        for num_rows, longest in (
            (num_seqs, prefix.max_own_len + tile.keys - 1),  # an own part may begin anywhere in a tile
            (num_groups * num_blocks, prefix.max_prefix_len),
        )
    )
    parts = Parts.empty(query, num_seqs, own.num_splits, shared.num_splits)
    prefix_kernel[(num_groups * num_blocks, num_kv_heads, shared.num_splits)](
        parts.rows,
        parts.lse,
        query,
        metadata.query_start_loc,
        metadata.block_table,
        prefix.members,
        prefix.group_starts,
        prefix.prefix_lens,
        table_stride=metadata.block_table.stride(0),
        num_blocks=num_blocks,
        num_prefix_splits=shared.num_splits,
        num_splits=own.num_splits,
        query_token_stride=query.stride(0),
        query_head_stride=query.stride(1),
        GROUP=group,
        ROWS=prefix_tile.rows,
        TILE=prefix_tile.keys,
        DIVIDED_TILE=tile.keys,
        SPLIT_TILES=shared.split_tiles,
        **score_arguments(scale, softcap),
        **page_arguments(pages),
        **prefix_tile.options,
        enable_fp_fusion=True,
    )
    attend_splits(
        query,
        pages,
        metadata,
        output,
        parts,
        scale=scale,
        window=None,
        softcap=softcap,
        sinks=sinks,
        tile=tile,
        plan=own,
        prefix=prefix,
    )
    merge_parts(parts, metadata, output, window=None, tile_keys=tile.keys, plan=own, prefix=prefix, sinks=sinks)


def variants() -> list[Variant]:
    """Every case that can share prefixes; with ``kernels.gpu.decode`` and ``reduce``, which have theirs."""
    return [_variant(case) for case in CASES if case.shares_prefixes]


def _variant(case: AttentionCase) -> Variant:
    sizes = (case.group, case.head_dim, case.dtype, case.pages_dtype)
    tile, divided = prefix_tile_shape(*sizes), decode_tile_shape(*sizes)
    types = {name: kind for name, kind in case.types.items() if name not in ("sinks_ptr", "seq_lens_ptr")}
    pointers = dict.fromkeys(("members_ptr", "group_starts_ptr", "prefix_lens_ptr"), "*i32")
    types |= {"parts_ptr": "*fp32", "lse_ptr": "*fp32"} | pointers
    constants = case.constants(tile) | {"DIVIDED_TILE": divided.keys, "SPLIT_TILES": MIN_SPLIT_TILES}
    return Variant.of(
        f"cascade:{case.name}", prefix_kernel, types, constants, num_warps=tile.num_warps, num_stages=tile.num_stages
    )
