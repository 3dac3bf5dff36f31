"""KV pages as kernels see them: the arguments every launch passes, and how a row is found through a block table.

All attention kernels take pages, scales and strides under the names of ``page_arguments``, and bundle what belongs to
one KV head into a *side*, one for keys and one for values, so that functions of kernels stay short:

    side    (pages_ptr, page_stride, slot_stride, scales_ptr, scale_page_stride), the pointers already at the head

Offsets into the pool are 64-bit: a pool may hold more than 2**31 elements. Pages of positions that are not resident
are not read, and neither are their entries of the block table. Knows no queries.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.attention import KVPages
from kernels.gpu.variant import pointer
from kernels.quantisation import SCALE_DTYPE, is_quantised


@triton.jit
def side_of(
    kv_head, pages_ptr, page_stride, head_stride, slot_stride, scales_ptr, scale_page_stride, scale_head_stride
):
    """The keys or the values of one KV head."""
    head_pages_ptr = pages_ptr + kv_head * head_stride
    head_scales_ptr = scales_ptr + kv_head * scale_head_stride
    return head_pages_ptr, page_stride, slot_stride, head_scales_ptr, scale_page_stride


@triton.jit
def find_slots(table_row_ptr, positions, resident, BLOCK_SIZE: tl.constexpr):
    """Page, as int64, and offset of each position; page 0 where not resident."""
    pages = tl.load(table_row_ptr + positions // BLOCK_SIZE, mask=resident, other=0).to(tl.int64)
    return pages, positions % BLOCK_SIZE


@triton.jit
def load_rows(side, pages, offsets, dims, resident, HEAD_DIM: tl.constexpr):
    """Gather [positions, dims] as it is stored; zeros where not resident and past ``HEAD_DIM``."""
    rows = side[0] + pages * side[1] + offsets * side[2]
    return tl.load(rows[:, None] + dims[None, :], mask=resident[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def load_scales(side, pages, offsets, resident):
    """Gather the float32 scales of the rows; zeros where not resident."""
    return tl.load(side[3] + pages * side[4] + offsets, mask=resident, other=0.0)


def padded_head_dim(head_dim: int) -> int:
    """The power of two that holds ``head_dim``; the rest is masked."""
    return max(16, 1 << (head_dim - 1).bit_length())


def page_arguments(pages: KVPages) -> dict[str, Any]:
    """Arguments by name. Pages without scales pass themselves in their place, for kernels never to look at."""
    arguments: dict[str, Any] = page_constants(pages.key.dtype, pages.key.shape[2], pages.key.shape[3])
    for name, stored, scales in (
        ("key", pages.key, pages.key_scales),
        ("value", pages.value, pages.value_scales),
    ):
        page_stride, head_stride, slot_stride, _ = stored.stride()
        arguments |= {
            f"{name}_pages_ptr": stored,
            f"{name}_page_stride": page_stride,
            f"{name}_head_stride": head_stride,
            f"{name}_slot_stride": slot_stride,
            f"{name}_scales_ptr": stored if scales is None else scales,
            f"{name}_scale_page_stride": 0 if scales is None else scales.stride(0),
            f"{name}_scale_head_stride": 0 if scales is None else scales.stride(1),
        }
    return arguments


def page_constants(dtype: torch.dtype, block_size: int, head_dim: int) -> dict[str, Any]:
    """The constexprs among ``page_arguments``."""
    return {
        "QUANTISED": is_quantised(dtype),
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": padded_head_dim(head_dim),
    }


def page_types(dtype: torch.dtype) -> dict[str, str]:
    """The types of the pointers among ``page_arguments``, for ``kernels.gpu.variant``."""
    stored = pointer(dtype)
    scales = pointer(SCALE_DTYPE) if is_quantised(dtype) else stored
    return {
        "key_pages_ptr": stored,
        "value_pages_ptr": stored,
        "key_scales_ptr": scales,
        "value_scales_ptr": scales,
    }


def check_scales(pages: KVPages) -> None:
    """Raise ``ValueError`` unless quantised pages, and they alone, come with float32 scales of the right shape."""
    for stored, scales in ((pages.key, pages.key_scales), (pages.value, pages.value_scales)):
        if is_quantised(stored.dtype) != (scales is not None):
            raise ValueError(f"{stored.dtype} pages {'need' if scales is None else 'take no'} scales")
        if scales is not None and (
            scales.shape != stored.shape[:3] or scales.dtype != SCALE_DTYPE or scales.stride(2) != 1
        ):
            raise ValueError(
                f"scales {tuple(scales.shape)} {scales.dtype} of pages {tuple(stored.shape)} must be float32 "
                "[pages, kv_heads, block_size] with a dense last dimension"
            )


def check_shapes(query: torch.Tensor, pages: KVPages, sinks: torch.Tensor | None = None) -> None:
    """Raise ``ValueError`` where the kernels would read the wrong memory instead of failing."""
    key_pages, value_pages = pages.key, pages.value
    if query.shape[1] % key_pages.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads do not divide among {key_pages.shape[1]} KV heads")
    if query.shape[2] != key_pages.shape[3] or key_pages.shape != value_pages.shape:
        raise ValueError(
            f"query {tuple(query.shape)}, key pages {tuple(key_pages.shape)} and value pages "
            f"{tuple(value_pages.shape)} do not agree on heads and head_dim"
        )
    if query.stride(2) != 1 or key_pages.stride(3) != 1 or value_pages.stride(3) != 1:
        raise ValueError("query and pages need a dense last dimension; call .contiguous() first")
    if sinks is not None and (sinks.shape != query.shape[1:2] or not sinks.is_contiguous()):
        raise ValueError(f"sinks {tuple(sinks.shape)} must be [{query.shape[1]}], one per query head, and contiguous")
    check_scales(pages)
