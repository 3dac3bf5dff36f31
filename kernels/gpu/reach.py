"""Tokens of a row of logits by how far they are below the largest: measure them, and find how far is enough.

Functions for kernels. A distance is a float32 number >= 0, infinite for a token that cannot be drawn (-inf and NaN);
its bits, as an integer, order like it. A weight is 2 ** -(distance * sharpness), and sums of weights are 64-bit
integers in units of 2 ** -40, which have no order of addition. The vocabulary is cut into segments of ``SEGMENT``
tokens; what is measured are the tokens of *listed* segments, ``SEGMENTS`` segments at a time. A list is in the order of
the vocabulary and lies in memory that one program owns.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITE = tl.constexpr(0x7F800000)  # the bits of an infinite distance; one more is no token at all
UNIT = tl.constexpr(1099511627776.0)  # 2 ** 40
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_logits(row_ptr, ids, present):
    """Float32; -inf for NaN and where not ``present``."""
    logits = tl.load(row_ptr + ids, mask=present, other=float("-inf")).to(tl.float32)
    return tl.where(logits == logits, logits, float("-inf"))


@triton.jit
def distance(logits, peak):
    """How far below ``peak``, also where both are infinite."""
    return tl.where(logits == peak, 0.0, peak - logits)


@triton.jit
def weigh(distances, sharpness):
    """2 ** -(distance * sharpness); 1 at distance 0 however sharp."""
    return tl.where(distances == 0.0, 1.0, tl.exp2(-(distances * sharpness)))


@triton.jit
def sharpness_of(temperature):
    """What turns a distance into powers of 2; finite at any temperature, 0 included."""
    return 1.0 / tl.maximum(temperature, 1.0e-38) * LOG2_E


@triton.jit
def tile_distances(
    row_ptr, listed_ptr, num_listed, start, peak, VOCAB: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr
):
    """Bits of the distances of all tokens of the listed segments ``start : start + SEGMENTS``, and the token ids."""
    places = start + tl.arange(0, SEGMENTS)
    segments = tl.load(listed_ptr + places, mask=places < num_listed, other=0)
    ids = segments[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
    present = (places < num_listed)[:, None] & (ids < VOCAB)
    bits = distance(load_logits(row_ptr, ids, present), peak).to(tl.int32, bitcast=True)
    return tl.where(present, bits, INFINITE + 1), ids


@triton.jit
def units(bits, sharpness):
    """Weights of distances in units of 2 ** -40, rounded, int64; 0 for what is no token."""
    weights = weigh(bits.to(tl.float32, bitcast=True), sharpness)
    return tl.where(bits < INFINITE, weights * UNIT + 0.5, 0.0).to(tl.int64)


@triton.jit
def measure(
    row_ptr,
    listed_ptr,
    num_listed,
    peak,
    sharpness,
    reach,
    VOCAB: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """Tokens up to ``reach``: how many, their weight, the farthest of them; and the nearest token beyond."""
    count = tl.full([], 0, tl.int32)
    weight = tl.full([], 0, tl.int64)
    farthest = tl.full([], -1, tl.int32)
    beyond = tl.full([], INFINITE + 1, tl.int32)
    for start in range(0, num_listed, SEGMENTS):
        bits, _ = tile_distances(row_ptr, listed_ptr, num_listed, start, peak, VOCAB, SEGMENT, SEGMENTS)
        within = bits <= reach
        count += tl.sum(within.to(tl.int32))
        weight += tl.sum(tl.where(within, units(bits, sharpness), 0))
        farthest = tl.maximum(farthest, tl.max(tl.where(within, bits, -1)))
        beyond = tl.minimum(beyond, tl.min(tl.where(within, INFINITE + 1, bits)))
    return count, weight, farthest, beyond


@triton.jit
def find_reach(
    row_ptr,
    listed_ptr,
    num_listed,
    peak,
    sharpness,
    most,
    wanted_count,
    wanted_weight,
    VOCAB: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """The least distance, of a token, within which there are at least ``wanted_count`` tokens of ``wanted_weight``.

    Returns its bits, and the count and the weight of what is nearer. ``most`` where not even that is enough.
    """
    low = tl.full([], -1, tl.int32)  # nothing up to here is enough
    high = most
    count_below = tl.full([], 0, tl.int32)
    weight_below = tl.full([], 0, tl.int64)
    while high - low > 1:
        middle = low + (high - low) // 2
        count, weight, farthest, beyond = measure(
            row_ptr, listed_ptr, num_listed, peak, sharpness, middle, VOCAB, SEGMENT, SEGMENTS
        )
        if (count >= wanted_count) & (weight >= wanted_weight):
            high = tl.maximum(farthest, low + 1)
        else:
            low = tl.minimum(beyond - 1, high - 1)
            count_below = count
            weight_below = weight
    return high, count_below, weight_below


@triton.jit
def nearest_segments(bits, wanted):
    """The distance, in bits, within which at least ``wanted`` segments have their nearest token."""
    low = tl.full([], -1, tl.int32)
    high = tl.full([], INFINITE, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        if tl.sum((bits <= middle).to(tl.int32), axis=0) >= wanted:
            high = tl.maximum(tl.max(tl.where(bits <= middle, bits, -1), axis=0), low + 1)
        else:
            low = tl.minimum(tl.min(tl.where(bits <= middle, INFINITE + 1, bits), axis=0) - 1, high - 1)
    return high


@triton.jit
def list_segments(listed_ptr, bits, reach, NUM_SEGMENTS: tl.constexpr):
    """Write down, in order, the segments with a token within ``reach``; returns how many."""
    tl.debug_barrier()  # no thread still reads the last list
    near = bits <= reach
    places = tl.cumsum(near.to(tl.int32), axis=0) - 1
    tl.store(listed_ptr + places, tl.arange(0, NUM_SEGMENTS), mask=near)
    tl.debug_barrier()  # all threads see all of it
    return tl.sum(near.to(tl.int32), axis=0)


@triton.jit
def nth_at_distance(
    row_ptr,
    listed_ptr,
    num_listed,
    peak,
    reach,
    place,
    VOCAB: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """The id of token number ``place``, by id, of those exactly ``reach`` away: its segment first, then its place."""
    slot = num_listed - 1
    before = tl.full([], 0, tl.int32)
    skipped = tl.full([], 0, tl.int32)
    for start in range(0, num_listed, SEGMENTS):
        bits, _ = tile_distances(row_ptr, listed_ptr, num_listed, start, peak, VOCAB, SEGMENT, SEGMENTS)
        counts = tl.sum((bits == reach).to(tl.int32), axis=1)
        cumulative = before + tl.cumsum(counts, axis=0)
        slot = tl.minimum(slot, tl.min(tl.where(cumulative > place, start + tl.arange(0, SEGMENTS), num_listed)))
        skipped = tl.maximum(skipped, tl.max(tl.where(cumulative <= place, cumulative, 0)))
        before += tl.sum(counts)
    ids = tl.load(listed_ptr + slot) * SEGMENT + tl.arange(0, SEGMENT)
    bits = distance(load_logits(row_ptr, ids, ids < VOCAB), peak).to(tl.int32, bitcast=True)
    equal = (bits == reach).to(tl.int32)
    is_chosen = (equal == 1) & (skipped + tl.cumsum(equal, axis=0) - 1 == place)
    return tl.min(tl.where(is_chosen, ids, VOCAB - 1))
