"""Scatter a step's new keys and values into their KV pages, in one Triton launch.

Contract
    key, value          [num_tokens, num_kv_heads, head_dim], any strides with a dense last dimension
    key_pages,
    value_pages         [num_pages, num_kv_heads, block_size, head_dim], likewise
    slot_mapping        int64 [num_tokens]: page * block_size + offset; -1 leaves the token out
Values are rounded to the dtype of the pages. Slots must be distinct: two tokens with one slot race. Offsets into the
pool are 64-bit, so that a pool may hold more than 2**31 elements.

Knows nothing of sequences: whoever made the slot mapping did.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_TOKENS = 16


@triton.jit(do_not_specialize=["num_tokens"])
def store_kv_kernel(
    key_ptr,
    value_ptr,
    key_pages_ptr,
    value_pages_ptr,
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
    key = tl.load(key_rows[:, None] + dims[None, :], mask=mask)
    key_slots = key_pages_ptr + pages * key_page_stride + head * key_page_head_stride + offsets * key_slot_stride
    tl.store(key_slots[:, None] + dims[None, :], key.to(key_pages_ptr.dtype.element_ty), mask=mask)

    value_rows = value_ptr + tokens * value_token_stride + head * value_head_stride
    value = tl.load(value_rows[:, None] + dims[None, :], mask=mask)
    value_slots = (
        value_pages_ptr + pages * value_page_stride + head * value_page_head_stride + offsets * value_slot_stride
    )
    tl.store(value_slots[:, None] + dims[None, :], value.to(value_pages_ptr.dtype.element_ty), mask=mask)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write each token's key and value into its slot; a slot of -1 is skipped. Shapes: see the module."""
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    store_kv_kernel[(triton.cdiv(num_tokens, BLOCK_TOKENS), num_kv_heads)](
        key,
        value,
        key_pages,
        value_pages,
        slot_mapping,
        num_tokens,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        *key_pages.stride()[:3],
        *value_pages.stride()[:3],
        BLOCK_SIZE=key_pages.shape[2],
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=triton.next_power_of_2(head_dim),
        BLOCK_TOKENS=BLOCK_TOKENS,
        enable_fp_fusion=True,
    )
