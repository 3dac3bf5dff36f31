"""One tile of keys and values, fetched through a block table and folded into a running softmax.

The step that decode and prefill share, after "FlashAttention-2" (Dao, 2023) with the gather of "PagedAttention" (Kwon
et al., 2023). Rows are (token, query head) pairs that read the same KV head. For each row the state is, in float32,

    peak   the largest score so far, in units of log2
    total  sum of 2 ** (score - peak)
    mixed  sum of 2 ** (score - peak) * value

Numerics: dot products take operands of the query's dtype (float32 ones in full precision, never TF32) and accumulate
in float32. Launches ask for fused multiply-add by name, since Triton's default for it differs between versions. A key
a row may not see adds exactly zero, and tiles start at multiples of ``TILE``, so a row's result does not depend on
which other rows share its program.

Reads the pages of positions ``first <= p < end`` only; entries of the block table outside are not even looked up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.attention import KVPages
from kernels.quantisation import SCALE_DTYPE, is_quantised


@triton.jit
def load_tile(pages_ptr, pages, offsets, dims, resident, page_stride, slot_stride, HEAD_DIM: tl.constexpr):
    """Gather [TILE, HEAD_DIM_PADDED] from the pages of one KV head; zeros where not resident. ``pages`` is int64."""
    rows = pages_ptr + pages * page_stride + offsets * slot_stride
    return tl.load(rows[:, None] + dims[None, :], mask=resident[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def attend_tile(
    query,
    row_positions,
    peak,
    total,
    mixed,
    tile_start,
    first,
    end,
    key_pages_ptr,
    value_pages_ptr,
    key_scales_ptr,
    value_scales_ptr,
    table_row_ptr,
    key_page_stride,
    key_slot_stride,
    value_page_stride,
    value_slot_stride,
    key_scale_stride,
    value_scale_stride,
    scale,
    softcap_log2,
    QUANTISED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    TILE: tl.constexpr,
):
    """Fold positions ``tile_start : tile_start + TILE`` into ``peak``, ``total`` and ``mixed``; returns the three.

    ``query`` [rows, HEAD_DIM_PADDED], ``row_positions`` int32 [rows]; page and scale pointers already point at the KV
    head. The scales of quantised pages are multiplied into scores and weights, never into rows.
    ``scale`` and ``softcap_log2`` come from ``ScoreScale``. ``WINDOW`` 0 means none.
    """
    positions = tile_start + tl.arange(0, TILE)
    dims = tl.arange(0, query.shape[1])
    resident = (positions >= first) & (positions < end)
    pages = tl.load(table_row_ptr + positions // BLOCK_SIZE, mask=resident, other=0).to(tl.int64)
    offsets = positions % BLOCK_SIZE

    key = load_tile(key_pages_ptr, pages, offsets, dims, resident, key_page_stride, key_slot_stride, HEAD_DIM)
    if QUANTISED:
        key = key.to(tl.float32)
    scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
    if QUANTISED:
        key_scales = tl.load(key_scales_ptr + pages * key_scale_stride + offsets, mask=resident, other=0.0)
        scores = scores * key_scales[None, :]
    scores = scores * scale
    if HAS_SOFTCAP:  # tanh(x) = 1 - 2 / (exp(2 x) + 1); exact at both ends, where exp is 0 or infinite
        scores = softcap_log2 * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
    visible = resident[None, :] & (positions[None, :] <= row_positions[:, None])
    if WINDOW > 0:
        visible = visible & (positions[None, :] > row_positions[:, None] - WINDOW)
    scores = tl.where(visible, scores, float("-inf"))

    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    # A row that has seen no key yet has a peak of -inf, and -inf - -inf is no number.
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - shift[:, None])
    fade = tl.exp2(peak - shift)
    value = load_tile(value_pages_ptr, pages, offsets, dims, resident, value_page_stride, value_slot_stride, HEAD_DIM)
    total = total * fade + tl.sum(weights, axis=1)
    if QUANTISED:
        value = value.to(tl.float32)
        value_scales = tl.load(value_scales_ptr + pages * value_scale_stride + offsets, mask=resident, other=0.0)
        weights = weights * value_scales[None, :]
    value = value.to(query.dtype)
    mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None], input_precision="ieee")
    return new_peak, total, mixed


@dataclass(frozen=True, slots=True)
class ScoreScale:
    """Two factors that turn a dot product into a score in units of log2, so that kernels need exp2 only.

    Without a softcap: score = ``scale`` * dot. With one: score = ``softcap_log2`` * tanh, where ``scale`` * dot is the
    exponent, in log2, of the exp(2 x) inside tanh.
    """

    scale: float
    softcap_log2: float

    @classmethod
    def of(cls, scale: float, softcap: float | None) -> ScoreScale:
        if softcap is None:
            return cls(scale * math.log2(math.e), 0.0)
        return cls(2.0 * scale / softcap * math.log2(math.e), softcap * math.log2(math.e))


@dataclass(frozen=True, slots=True)
class TileShape:
    """How much one attention program holds: ``rows`` of queries against ``keys`` at a time, and how it is compiled."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def padded_head_dim(head_dim: int) -> int:
    """The power of two that holds ``head_dim``; the rest is masked."""
    return max(16, 1 << (head_dim - 1).bit_length())


def scale_arguments(pages: KVPages) -> tuple[torch.Tensor, torch.Tensor, int, int, int, int]:
    """Key and value scales, then the strides of each from page to page and from head to head.

    For pages without scales, tensors that kernels are never to look at.
    """
    keys, values = pages.key_scales, pages.value_scales
    if keys is None or values is None:
        return pages.key, pages.value, 0, 0, 0, 0
    return keys, values, keys.stride(0), keys.stride(1), values.stride(0), values.stride(1)


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


def check_shapes(query: torch.Tensor, pages: KVPages) -> None:
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
    check_scales(pages)
