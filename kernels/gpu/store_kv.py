"""Scatter a step's new keys and values into their KV pages, in one Triton launch.

Contract
    key, value          [num_tokens, num_kv_heads, head_dim], any strides with a dense last dimension
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], likewise
    key_scales,
    value_scales        float32 [num_pages, num_kv_heads, block_size], of quantised pages
    slot_mapping        int64 [num_tokens]: page * block_size + offset; -1 leaves the token out
Values are rounded to the dtype of the pages, or quantised row by row as ``kernels.quantisation`` says. Slots must be
distinct: two tokens with one slot race. Offsets into the pool are 64-bit, so that a pool may hold more than 2**31
elements.

Knows nothing of sequences: whoever made the slot mapping did.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.attention import KVPages
from kernels.gpu.tile import check_scales, scale_arguments
from kernels.quantisation import LARGEST_CODE

BLOCK_TOKENS = 16


@triton.jit
def quantise(rows, LARGEST: tl.constexpr, IS_INTEGER: tl.constexpr):
    """Codes, still in float32 and, for floats, not yet rounded, and scales of ``rows`` [tokens, HEAD_DIM_PADDED]."""
    rows = rows.to(tl.float32)
    # As integers, magnitudes compare like the numbers, and NaN is the largest.
    bits = tl.max(rows.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    is_finite = bits < 0x7F800000
    absmax = bits.to(tl.float32, bitcast=True)
    scales = tl.where(is_finite, tl.div_rn(absmax, tl.full(absmax.shape, LARGEST, tl.float32)), float("nan"))
    divisors = tl.where(scales > 0, scales, 1.0)
    codes = tl.div_rn(rows, tl.broadcast_to(divisors[:, None], rows.shape))
    codes = tl.minimum(tl.maximum(tl.where(is_finite[:, None], codes, 0.0), -LARGEST), LARGEST)
    if IS_INTEGER:  # adding 1.5 * 2 ** 23 rounds to the nearest integer, ties to even
        codes = (codes + 12582912.0) - 12582912.0
    return codes, scales


@triton.jit(do_not_specialize=["num_tokens"])
def store_kv_kernel(
    key_ptr,
    value_ptr,
    key_pages_ptr,
    value_pages_ptr,
    key_scales_ptr,
    value_scales_ptr,
    slot_mapping_ptr,
    num_tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    key_page_stride,
    key_page_head_stride,
    key_slot_stride,
    value_page_stride,
    value_page_head_stride,
    value_slot_stride,
    key_scale_page_stride,
    key_scale_head_stride,
    value_scale_page_stride,
    value_scale_head_stride,
    QUANTISED: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """One program moves ``BLOCK_TOKENS`` tokens of one KV head. Grid: (token blocks, num_kv_heads)."""
    head = tl.program_id(1)
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    dims = tl.arange(0, HEAD_DIM_PADDED)

    slots = tl.load(slot_mapping_ptr + tokens, mask=tokens < num_tokens, other=-1)
    stored = slots >= 0
    slots = tl.where(stored, slots, 0)
    pages = slots // BLOCK_SIZE
    offsets = slots % BLOCK_SIZE
    mask = stored[:, None] & (dims < HEAD_DIM)[None, :]

    key_rows = key_ptr + tokens * key_token_stride + head * key_head_stride
    key = tl.load(key_rows[:, None] + dims[None, :], mask=mask, other=0.0)
    if QUANTISED:
        key, scales = quantise(key, LARGEST, IS_INTEGER)
        key_scales = key_scales_ptr + pages * key_scale_page_stride + head * key_scale_head_stride + offsets
        tl.store(key_scales, scales, mask=stored)
    key_slots = key_pages_ptr + pages * key_page_stride + head * key_page_head_stride + offsets * key_slot_stride
    tl.store(key_slots[:, None] + dims[None, :], key.to(key_pages_ptr.dtype.element_ty), mask=mask)

    value_rows = value_ptr + tokens * value_token_stride + head * value_head_stride
    value = tl.load(value_rows[:, None] + dims[None, :], mask=mask, other=0.0)
    if QUANTISED:
        value, scales = quantise(value, LARGEST, IS_INTEGER)
        value_scales = value_scales_ptr + pages * value_scale_page_stride + head * value_scale_head_stride + offsets
        tl.store(value_scales, scales, mask=stored)
    value_slots = (
        value_pages_ptr + pages * value_page_stride + head * value_page_head_stride + offsets * value_slot_stride
    )
    tl.store(value_slots[:, None] + dims[None, :], value.to(value_pages_ptr.dtype.element_ty), mask=mask)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
) -> None:
    """Write each token's key and value into its slot; a slot of -1 is skipped. Shapes: see the module."""
    check_scales(pages)
    key_scales, value_scales, *scale_strides = scale_arguments(pages)
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    store_kv_kernel[(triton.cdiv(num_tokens, BLOCK_TOKENS), num_kv_heads)](
        key,
        value,
        pages.key,
        pages.value,
        key_scales,
        value_scales,
        slot_mapping,
        num_tokens,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        *pages.key.stride()[:3],
        *pages.value.stride()[:3],
        *scale_strides,
        QUANTISED=pages.key_scales is not None,
        LARGEST=LARGEST_CODE.get(pages.key.dtype, 0.0),
        IS_INTEGER=pages.key.dtype == torch.int8,
        BLOCK_SIZE=pages.key.shape[2],
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=triton.next_power_of_2(head_dim),
        BLOCK_TOKENS=BLOCK_TOKENS,
        enable_fp_fusion=True,
    )
