"""Rows of heads in the parts that rotary embedding pairs: functions of kernels that load, prepare and store them.

    parts    (first, second, rest): elements i < pairs, elements i + pairs, [tokens, lanes of pairs] each, and what lies
             behind the pairs, [tokens, lanes of the row] with zeros before. Where all elements are in pairs, ``rest``
             is ``first`` again, and nobody looks at it
    lanes    the indices of pairs, and those of a row's elements, each padded to a power of two
    turns    pointers of cosines and sines, or None, and each token's offset into both

An element and the one that it turns with are held by one thread, so that rows may be rewritten in place. Knows no
pages.
"""

from __future__ import annotations

import triton
import triton.language as tl


def padded_pairs(pairs: int) -> int:
    """Lanes for so many pairs."""
    return max(8, 1 << (pairs - 1).bit_length())


@triton.jit
def in_pairs(present, lanes, PAIRS: tl.constexpr):
    """The mask of the first two parts of the rows that are present."""
    return present[:, None] & (lanes[0] < PAIRS)[None, :]


@triton.jit
def behind_pairs(present, lanes, PAIRS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The mask of the last part."""
    return present[:, None] & ((lanes[1] >= 2 * PAIRS) & (lanes[1] < HEAD_DIM))[None, :]


@triton.jit
def load_parts(rows, present, lanes, PAIRS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Parts of the rows that begin at the pointers ``rows``; zeros where not present and beside the parts."""
    mask = in_pairs(present, lanes, PAIRS)
    first = tl.load(rows[:, None] + lanes[0][None, :], mask=mask, other=0.0)
    second = tl.load(rows[:, None] + PAIRS + lanes[0][None, :], mask=mask, other=0.0)
    rest = first
    if 2 * PAIRS < HEAD_DIM:
        mask = behind_pairs(present, lanes, PAIRS, HEAD_DIM)
        rest = tl.load(rows[:, None] + lanes[1][None, :], mask=mask, other=0.0)
    return first, second, rest


@triton.jit
def store_parts(rows, parts, present, lanes, PAIRS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Round the parts, and write them to the rows that begin at the pointers ``rows``."""
    first, second, rest = parts
    mask = in_pairs(present, lanes, PAIRS)
    tl.store(rows[:, None] + lanes[0][None, :], first.to(rows.dtype.element_ty), mask=mask)
    tl.store(rows[:, None] + PAIRS + lanes[0][None, :], second.to(rows.dtype.element_ty), mask=mask)
    if 2 * PAIRS < HEAD_DIM:
        mask = behind_pairs(present, lanes, PAIRS, HEAD_DIM)
        tl.store(rows[:, None] + lanes[1][None, :], rest.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def widened(parts):
    """The parts in float32."""
    first, second, rest = parts
    return first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)


@triton.jit
def prepare(parts, norm_ptr, eps, turns, present, lanes, PAIRS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Parts after RMSNorm and rotary embedding, in float32; each is left out without its pointer."""
    first, second, rest = widened(parts)
    pairs, dims = lanes
    cos_ptr, sin_ptr, offsets = turns
    if norm_ptr is not None:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        if 2 * PAIRS < HEAD_DIM:
            squares += tl.sum(rest * rest, axis=1)
        factors = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first = first * factors * tl.load(norm_ptr + pairs, mask=pairs < PAIRS, other=0.0).to(tl.float32)[None, :]
        norms = tl.load(norm_ptr + PAIRS + pairs, mask=pairs < PAIRS, other=0.0).to(tl.float32)
        second = second * factors * norms[None, :]
        if 2 * PAIRS < HEAD_DIM:
            rest = rest * factors * tl.load(norm_ptr + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)[None, :]
    if cos_ptr is not None:
        angles = offsets[:, None] + pairs[None, :]
        mask = in_pairs(present, lanes, PAIRS)
        cos = tl.load(cos_ptr + angles, mask=mask, other=1.0)
        sin = tl.load(sin_ptr + angles, mask=mask, other=0.0)
        first, second = first * cos - second * sin, second * cos + first * sin
    return first, second, rest
