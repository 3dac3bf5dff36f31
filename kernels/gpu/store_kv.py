"""Scatter a step's new keys and values into their KV pages, in one Triton launch; on request normed and rotated before.

Contract
    key, value          [num_tokens, num_kv_heads, head_dim], any strides with a dense last dimension; not changed
    query               [num_tokens, num_q_heads, head_dim], likewise; with ``preparation`` only, rewritten in place
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], likewise; head_dim is even
    key_scales,
    value_scales        float32 [num_pages, num_kv_heads, block_size], of quantised pages
    slot_mapping        int64 [num_tokens]: page * block_size + offset; -1 leaves the token out

Values are rounded to the dtype of the pages, or quantised row by row as ``kernels.quantisation`` says, bit for bit.
Preparation (``kernels.attention.Preparation``) computes in float32 and rounds once, at the end: into the query, and
into the pages. Slots must be distinct, or two tokens race; only in the null page, 0, which nobody reads, padding may
share them. Offsets into the pool are 64-bit, so that a pool may hold more than 2**31 elements.

Rows are held in parts (``kernels.gpu.row_parts``), halves of rows where nothing turns. Knows nothing of sequences:
whoever made the slot mapping did. Tested in Triton's interpreter and compiled for GPUs; not yet run on one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.attention import KVPages, Preparation
from kernels.gpu.attention_case import CASES, AttentionCase
from kernels.gpu.pages import check_scales, padded_head_dim, page_arguments, page_constants, page_types
from kernels.gpu.row_parts import load_parts, padded_pairs, prepare, store_parts, widened
from kernels.gpu.variant import Variant, pointer
from kernels.quantisation import LARGEST_CODE

BLOCK_TOKENS = 16
# Elements of 16 bits that a warp of 64 lanes moves at once with the widest loads that lanes have.
MOVED_AT_ONCE = 512


@triton.jit
def largest_bits(part):
    """Each row's largest magnitude, as bits: as integers, magnitudes compare like numbers, and NaN is the largest."""
    return tl.max(part.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)


@triton.jit
def codes_of(part, is_finite, divisors, LARGEST: tl.constexpr, IS_INTEGER: tl.constexpr):
    """Codes of one part, still in float32 and, for floats, not yet rounded."""
    codes = tl.div_rn(part, tl.broadcast_to(divisors[:, None], part.shape))
    codes = tl.minimum(tl.maximum(tl.where(is_finite[:, None], codes, 0.0), -LARGEST), LARGEST)
    if IS_INTEGER:  # adding 1.5 * 2 ** 23 rounds to the nearest integer, ties to even
        codes = (codes + 12582912.0) - 12582912.0
    return codes


@triton.jit
def store_row(
    parts,
    side,
    slots,
    stored,
    lanes,
    QUANTISED: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAIRS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Round or quantise the rows, and write them, and their scales, where they belong."""
    pages_ptr, page_stride, head_offset, slot_stride, scales_ptr, scale_page_stride, scale_head_offset = side
    pages = slots // BLOCK_SIZE
    offsets = slots % BLOCK_SIZE
    if QUANTISED:
        first, second, rest = widened(parts)
        bits = tl.maximum(largest_bits(first), largest_bits(second))
        if 2 * PAIRS < HEAD_DIM:
            bits = tl.maximum(bits, largest_bits(rest))
        is_finite = bits < 0x7F800000
        absmax = bits.to(tl.float32, bitcast=True)
        scales = tl.where(is_finite, tl.div_rn(absmax, tl.full(absmax.shape, LARGEST, tl.float32)), float("nan"))
        divisors = tl.where(scales > 0, scales, 1.0)
        parts = (
            codes_of(first, is_finite, divisors, LARGEST, IS_INTEGER),
            codes_of(second, is_finite, divisors, LARGEST, IS_INTEGER),
            codes_of(rest, is_finite, divisors, LARGEST, IS_INTEGER),
        )
        tl.store(scales_ptr + pages * scale_page_stride + scale_head_offset + offsets, scales, mask=stored)
    rows = pages_ptr + pages * page_stride + head_offset + offsets * slot_stride
    store_parts(rows, parts, stored, lanes, PAIRS, HEAD_DIM)


@triton.jit(do_not_specialize=["num_tokens"])
def store_kv_kernel(
    key_ptr,
    value_ptr,
    query_ptr,
    slot_mapping_ptr,
    query_norm_ptr,
    key_norm_ptr,
    cos_ptr,
    sin_ptr,
    eps,
    num_tokens,
    key_token_stride,
    key_row_stride,
    value_token_stride,
    value_row_stride,
    query_token_stride,
    query_row_stride,
    angle_stride,
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
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_PADDED: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """One program moves ``BLOCK_TOKENS`` tokens of one KV head, or prepares those of one query head.

    Grid: (token blocks, num_kv_heads), and with ``query_ptr`` num_q_heads more.
    """
    head = tl.program_id(1)
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    present = tokens < num_tokens
    lanes = (tl.arange(0, PAIRS_PADDED), tl.arange(0, HEAD_DIM_PADDED))
    turns = (cos_ptr, sin_ptr, tokens * angle_stride)

    if query_ptr is not None:  # noqa: SIM102 - known when compiling, where there may be no pointer
        if head >= NUM_KV_HEADS:
            query = query_ptr + tokens * query_token_stride + (head - NUM_KV_HEADS) * query_row_stride
            parts = load_parts(query, present, lanes, PAIRS, HEAD_DIM)
            parts = prepare(parts, query_norm_ptr, eps, turns, present, lanes, PAIRS, HEAD_DIM)
            store_parts(query, parts, present, lanes, PAIRS, HEAD_DIM)
            return

    slots = tl.load(slot_mapping_ptr + tokens, mask=present, other=-1)
    stored = slots >= 0
    slots = tl.where(stored, slots, 0)

    parts = load_parts(key_ptr + tokens * key_token_stride + head * key_row_stride, stored, lanes, PAIRS, HEAD_DIM)
    if query_ptr is not None:
        parts = prepare(parts, key_norm_ptr, eps, turns, stored, lanes, PAIRS, HEAD_DIM)
    side = (
        key_pages_ptr,
        key_page_stride,
        head * key_head_stride,
        key_slot_stride,
        key_scales_ptr,
        key_scale_page_stride,
        head * key_scale_head_stride,
    )
    store_row(parts, side, slots, stored, lanes, QUANTISED, LARGEST, IS_INTEGER, BLOCK_SIZE, PAIRS, HEAD_DIM)

    value = value_ptr + tokens * value_token_stride + head * value_row_stride
    parts = load_parts(value, stored, lanes, PAIRS, HEAD_DIM)
    side = (
        value_pages_ptr,
        value_page_stride,
        head * value_head_stride,
        value_slot_stride,
        value_scales_ptr,
        value_scale_page_stride,
        head * value_scale_head_stride,
    )
    store_row(parts, side, slots, stored, lanes, QUANTISED, LARGEST, IS_INTEGER, BLOCK_SIZE, PAIRS, HEAD_DIM)


def store_kv(key: torch.Tensor, value: torch.Tensor, pages: KVPages, slot_mapping: torch.Tensor) -> None:
    """Write each token's key and value into its slot; a slot of -1 is skipped. Shapes: see the module."""
    _launch(None, key, value, pages, slot_mapping, Preparation())


def prepare_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
    preparation: Preparation,
) -> None:
    """Norm and rotate queries, in place, and keys, on their way into the pages; queries of skipped tokens too."""
    _launch(query, key, value, pages, slot_mapping, preparation)


def _launch(
    query: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
    preparation: Preparation,
) -> None:
    check_scales(pages)
    num_tokens, num_kv_heads, head_dim = key.shape
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd; rows are held as two halves")
    if any(tensor is not None and tensor.stride(2) != 1 for tensor in (query, key, value)):
        raise ValueError("query, key and value need a dense last dimension; call .contiguous() first")
    if num_tokens == 0:
        return
    cos, sin = preparation.rotation or (None, None)
    if cos is not None and sin is not None and cos.stride() != sin.stride():
        raise ValueError(f"cosines and sines of strides {cos.stride()} and {sin.stride()} need the same layout")
    pairs = head_dim // 2 if cos is None else cos.shape[-1]
    if not 0 < 2 * pairs <= head_dim:
        raise ValueError(f"{pairs} pairs do not fit heads of {head_dim}")
    num_heads = num_kv_heads + (0 if query is None else query.shape[1])
    store_kv_kernel[(triton.cdiv(num_tokens, BLOCK_TOKENS), num_heads)](
        key,
        value,
        query,
        slot_mapping,
        preparation.query_norm,
        preparation.key_norm,
        cos,
        sin,
        preparation.eps,
        num_tokens,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        0 if query is None else query.stride(0),
        0 if query is None else query.stride(1),
        0 if cos is None else cos.stride(0),
        **page_arguments(pages),
        **_code_constants(pages.key.dtype),
        PAIRS=pairs,
        PAIRS_PADDED=padded_pairs(pairs),
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_TOKENS=BLOCK_TOKENS,
        num_warps=num_warps(head_dim),
        enable_fp_fusion=True,
    )


def num_warps(head_dim: int) -> int:
    """Warps to a program: no more than have something to load."""
    return max(1, BLOCK_TOKENS * (padded_head_dim(head_dim) // 2) // MOVED_AT_ONCE)


def _code_constants(pages_dtype: torch.dtype) -> dict[str, Any]:
    return {"LARGEST": LARGEST_CODE.get(pages_dtype, 0.0), "IS_INTEGER": pages_dtype == torch.int8}


def variants() -> list[Variant]:
    """Every case that differs here, alone and, by turns, with rotary embedding, of some pairs only, and norms too."""
    cases = {(case.head_dim, case.dtype, case.pages_dtype): case for case in CASES}
    listed = []
    for index, case in enumerate(cases.values()):
        listed.append(_variant(case, has_norms=False, rotary_dim=0))
        listed.append(_variant(case, has_norms=index % 2 == 0, rotary_dim=case.head_dim))
        if index % 3 == 0:
            listed.append(_variant(case, has_norms=index % 2 == 0, rotary_dim=case.head_dim // 32 * 16))
    return listed


def _variant(case: AttentionCase, *, has_norms: bool, rotary_dim: int) -> Variant:
    rows = pointer(case.dtype)
    dtypes = "/".join(str(dtype).removeprefix("torch.") for dtype in (case.dtype, case.pages_dtype))
    has_rotation = rotary_dim > 0
    rotary = "rotary" if rotary_dim == case.head_dim else f"rotary{rotary_dim}"
    preparation = ("norm+" if has_norms else "") + rotary if has_rotation else "plain"
    pairs = (rotary_dim or case.head_dim) // 2
    return Variant.of(
        f"store_kv:{case.head_dim}:{dtypes}:{preparation}",
        store_kv_kernel,
        {
            **page_types(case.pages_dtype),
            "key_ptr": rows,
            "value_ptr": rows,
            "query_ptr": rows if has_rotation else None,
            "slot_mapping_ptr": "*i64",
            "query_norm_ptr": "*fp32" if has_norms else None,
            "key_norm_ptr": "*fp32" if has_norms else None,
            "cos_ptr": "*fp32" if has_rotation else None,
            "sin_ptr": "*fp32" if has_rotation else None,
            "eps": "fp32",
        },
        {
            **page_constants(case.pages_dtype, case.block_size, case.head_dim),
            **_code_constants(case.pages_dtype),
            "PAIRS": pairs,
            "PAIRS_PADDED": padded_pairs(pairs),
            "NUM_KV_HEADS": 8,
            "BLOCK_TOKENS": BLOCK_TOKENS,
        },
        num_warps=num_warps(case.head_dim),
    )
