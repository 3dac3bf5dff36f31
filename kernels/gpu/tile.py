"""Rows of queries against a range of positions: the part of attention that decode, prefill and cascade share.

After "FlashAttention-2" (Dao, 2023) with the gather of "PagedAttention" (Kwon et al., 2023). Rows are (token, query
head) pairs that read the same KV head. Keys and values come in tiles of ``TILE`` positions, whatever the page size.

    part    what a row makes of a range of positions: its softmax over them, times the values, normalized
    lse     the range's weight: log2 of the sum of 2 ** score, with scores in units of log2; -inf for no position
    merged  parts folded together so far: ``peak`` (the largest lse), ``total`` (sum of 2 ** (lse - peak)) and ``mixed``
            (the same sum, each term times its part), all float32

An attention sink is one more logit of a query head, with no value: it is folded in as a part of zeros ("Efficient
Streaming Language Models with Attention Sinks", Xiao et al., 2023; learned, as in gpt-oss).

Numerics: dot products take operands of the query's dtype (float32 ones in full precision, never TF32) and accumulate
in float32. Launches say whether products and sums may fuse, since Triton's default for it differs between versions. A
key that a row may not see adds exactly zero, and tiles start at multiples of ``TILE``, so a row's result does not
depend on which other rows share its program. Proven in Triton's interpreter; not yet run on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.gpu.pages import find_slots, load_rows, load_scales
from kernels.gpu.variant import warps_on

LOG2_E = math.log2(math.e)


@triton.jit
def bend_scores(scores, scale, softcap_log2, HAS_SOFTCAP: tl.constexpr):
    """Dot products as scores in units of log2; the two factors come from ``score_arguments``."""
    scores = scores * scale
    if HAS_SOFTCAP:  # tanh(x) = 1 - 2 / (exp(2 x) + 1); exact at both ends, where exp is 0 or infinite
        scores = softcap_log2 * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
    return scores


@triton.jit
def attend_range(
    query,
    row_positions,
    start,
    first,
    end,
    keys,
    values,
    table_row_ptr,
    scale,
    softcap_log2,
    QUANTISED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    TILE: tl.constexpr,
):
    """The part [rows, HEAD_DIM_PADDED] and lse [rows] of positions ``max(start, first) : end``.

    ``query`` [rows, HEAD_DIM_PADDED]; ``row_positions`` int32 [rows], each sees its window up to itself; ``start`` is a
    multiple of TILE; ``keys`` and ``values`` are sides (``kernels.gpu.pages``). The scales of quantised pages are
    multiplied into scores and weights, never into rows. ``WINDOW`` 0 means none.
    """
    peak = tl.full([query.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    mixed = tl.zeros([query.shape[0], query.shape[1]], tl.float32)
    dims = tl.arange(0, query.shape[1])
    for tile_start in range(start, end, TILE):
        positions = tile_start + tl.arange(0, TILE)
        resident = (positions >= first) & (positions < end)
        pages, offsets = find_slots(table_row_ptr, positions, resident, BLOCK_SIZE)
        key = load_rows(keys, pages, offsets, dims, resident, HEAD_DIM)
        if QUANTISED:
            key = key.to(tl.float32)
        scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
        if QUANTISED:
            scores = scores * load_scales(keys, pages, offsets, resident)[None, :]
        scores = bend_scores(scores, scale, softcap_log2, HAS_SOFTCAP)
        visible = resident[None, :] & (positions[None, :] <= row_positions[:, None])
        if WINDOW > 0:
            visible = visible & (positions[None, :] > row_positions[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))

        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        # A row that has seen no key yet has a peak of -inf, and -inf - -inf is no number.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(peak - shift)
        total = total * fade + tl.sum(weights, axis=1)
        value = load_rows(values, pages, offsets, dims, resident, HEAD_DIM)
        if QUANTISED:
            value = value.to(tl.float32)
            weights = weights * load_scales(values, pages, offsets, resident)[None, :]
        value = value.to(query.dtype)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None], input_precision="ieee")
        peak = new_peak
    divisor = tl.where(total == 0.0, 1.0, total)  # of rows that see nothing here
    return mixed / divisor[:, None], peak + tl.log2(divisor)


@triton.jit
def merge_nothing(sinks_ptr, heads, mask, ROWS: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr):
    """What ``merge_part`` starts from: the sink of each row's head, or nothing. ``heads`` and ``mask`` [ROWS]."""
    if sinks_ptr is None:
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    else:
        peak = tl.load(sinks_ptr + heads, mask=mask, other=0.0).to(tl.float32) * 1.4426950408889634
        total = tl.full([ROWS], 1.0, tl.float32)
    return peak, total, tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)


@triton.jit
def merge_part(peak, total, mixed, part, lse):
    """Fold one more part into what is merged; returns the three. The same code, and order, wherever parts meet."""
    new_peak = tl.maximum(peak, lse)
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    fade = tl.exp2(peak - shift)
    weight = tl.exp2(lse - shift)
    return new_peak, total * fade + weight, mixed * fade[:, None] + part * weight[:, None]


@triton.jit
def merged_rows(total, mixed):
    """The attention of what was merged; zeros for a row without any position."""
    return mixed / tl.where(total == 0.0, 1.0, total)[:, None]


def score_arguments(scale: float, softcap: float | None) -> dict[str, Any]:
    """The factors of ``bend_scores``, which bring scores to units of log2 so that kernels need exp2 only.

    Without a softcap: score = ``scale`` * dot. With one: score = ``softcap_log2`` * tanh, where ``scale`` * dot is the
    exponent, in log2, of the exp(2 x) inside tanh.
    """
    if softcap is None:
        return {"scale": scale * LOG2_E, "softcap_log2": 0.0, "HAS_SOFTCAP": False}
    return {"scale": 2.0 * scale / softcap * LOG2_E, "softcap_log2": softcap * LOG2_E, "HAS_SOFTCAP": True}


@dataclass(frozen=True, slots=True)
class TileShape:
    """How much one attention program holds: ``rows`` of queries against ``keys`` at a time, and how it is compiled."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        """Options of a launch on this machine's kind of GPU."""
        backend = "cuda" if torch.version.hip is None else "hip"
        return {"num_warps": warps_on(backend, self.num_warps), "num_stages": self.num_stages}
