"""The draw of one token: a uniform number from (seed, output index), and the token where the distribution reaches it.

Functions for kernels. ``draw_by_id`` serves rows without filters: the cumulative distribution runs over token ids.
``draw_by_distance`` serves the others: it runs over the kept tokens from likely to unlikely, equals by id, and both the
filters and the draw are distances below the largest logit (``kernels.gpu.reach``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.reach import (
    INFINITE,
    UNIT,
    distance,
    find_reach,
    list_segments,
    load_logits,
    measure,
    nearest_segments,
    nth_at_distance,
    units,
    weigh,
)

_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def mix(value):
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014), on uint64."""
    value = (value ^ (value >> 30)) * tl.full([], _MIX_1, tl.uint64)
    value = (value ^ (value >> 27)) * tl.full([], _MIX_2, tl.uint64)
    return value ^ (value >> 31)


@triton.jit
def uniform_bits(seed, output_index):
    """The draw in [0, 1), in units of 2 ** -53, as uint64."""
    golden = tl.full([], _GOLDEN, tl.uint64)
    state = mix(seed.to(tl.uint64, bitcast=True) ^ golden)
    return mix(state + output_index.to(tl.uint64, bitcast=True) * golden) >> 11


@triton.jit
def draw_by_id(
    row_ptr,
    chunk_peaks,
    chunk_weights,
    peak,
    sharpness,
    draw,
    VOCAB: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """The token at ``draw`` of the cumulative distribution over ids: its chunk first, its segment, then its place."""
    chunks = tl.arange(0, CHUNKS_PADDED)
    scaled = weigh(distance(chunk_peaks, peak), sharpness).to(tl.float64) * chunk_weights.to(tl.float64)
    scaled = tl.where(chunk_weights > 0.0, scaled, 0.0)
    cumulative = tl.cumsum(scaled, axis=0)
    total = tl.max(cumulative, axis=0)
    target = draw.to(tl.float64) * 1.1102230246251565e-16 * total
    last = tl.max(tl.where(scaled > 0.0, chunks, 0), axis=0)
    chunk = tl.minimum(tl.min(tl.where(cumulative > target, chunks, CHUNKS_PADDED - 1), axis=0), last)
    before = tl.max(tl.where(chunks < chunk, cumulative, 0.0), axis=0)

    segments = chunk * SEGMENTS + tl.arange(0, SEGMENTS)
    ids = segments[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
    weights = weigh(distance(load_logits(row_ptr, ids, ids < VOCAB), peak), sharpness)
    sums = tl.sum(tl.where(ids < VOCAB, weights, 0.0), axis=1).to(tl.float64)
    cumulative = before + tl.cumsum(sums, axis=0)
    last = tl.max(tl.where(sums > 0.0, segments, chunk * SEGMENTS))
    segment = tl.minimum(tl.min(tl.where(cumulative > target, segments, VOCAB)), last)
    before = tl.maximum(before, tl.max(tl.where(segments < segment, cumulative, 0.0)))

    ids = segment * SEGMENT + tl.arange(0, SEGMENT)
    weights = weigh(distance(load_logits(row_ptr, ids, ids < VOCAB), peak), sharpness)
    weights = tl.where(ids < VOCAB, weights, 0.0)
    cumulative = before + tl.cumsum(weights.to(tl.float64), axis=0)
    last = tl.max(tl.where(weights > 0.0, ids, segment * SEGMENT))
    return tl.minimum(tl.min(tl.where(cumulative > target, ids, VOCAB)), last)


@triton.jit
def draw_by_distance(
    row_ptr,
    listed_ptr,
    segment_bits,
    total,
    peak,
    sharpness,
    temperature,
    top_k,
    top_p,
    min_p,
    draw,
    VOCAB: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    NUM_SEGMENTS: tl.constexpr,
    FIRST_SEGMENTS: tl.constexpr,
):
    """The token at ``draw`` of the kept tokens, from likely to unlikely. ``total`` is the weight of all, float64."""
    limit = tl.where((top_k > 0) & (top_k < VOCAB), top_k, VOCAB)
    has_top_k = limit < VOCAB
    has_top_p = top_p < 1.0
    kept_by_min_p = tl.full([], INFINITE, tl.int32)
    if min_p > 0.0:
        farthest = tl.abs(tl.log(min_p) * temperature)
        kept_by_min_p = farthest.to(tl.int32, bitcast=True)

    # Segments that hold every token that can be kept, and all that weigh more.
    reach = kept_by_min_p
    if has_top_k:
        reach = nearest_segments(segment_bits, limit)
    wanted_weight = (total * top_p.to(tl.float64) * UNIT).to(tl.int64)
    if has_top_p & (not has_top_k):
        num_wanted = tl.full([], FIRST_SEGMENTS, tl.int32)
        num_listed = tl.full([], 0, tl.int32)
        found_weight = tl.full([], -1, tl.int64)
        reach = tl.full([], -1, tl.int32)
        while (found_weight < wanted_weight) & (reach < INFINITE):
            reach = nearest_segments(segment_bits, num_wanted)
            num_listed = list_segments(listed_ptr, segment_bits, reach, NUM_SEGMENTS)
            _, found_weight, _, _ = measure(
                row_ptr, listed_ptr, num_listed, peak, sharpness, reach, VOCAB, SEGMENT, SEGMENTS
            )
            num_wanted *= 8
    else:
        num_listed = list_segments(listed_ptr, segment_bits, reach, NUM_SEGMENTS)

    # The kept tokens are all nearer than ``edge`` and, by id, as many of those just there as ``kept_weight`` says.
    # Three searches in one loop, so that its body is compiled once: top-k, top-p, and the draw among what they kept.
    edge = reach
    kept_weight = tl.full([], 0, tl.int64)
    place = tl.full([], 0, tl.int64)
    for search in range(0, 3):
        is_draw = search == 2
        if is_draw:
            if (kept_by_min_p < edge) | (not (has_top_k | has_top_p)):
                edge = tl.minimum(kept_by_min_p, edge)
                _, kept_weight, _, _ = measure(
                    row_ptr, listed_ptr, num_listed, peak, sharpness, edge, VOCAB, SEGMENT, SEGMENTS
                )
            # floor(draw * kept weight), of 53 and 62 bits: the draw is the first token whose cumulative weight is more
            target = tl.umulhi(draw << 11, kept_weight.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)
            wanted_weight = tl.minimum(target, kept_weight - 1) + 1
        is_top_p = (search == 1) & has_top_p
        is_top_k = (search == 0) & has_top_k
        if is_top_k | is_top_p | is_draw:
            found, count, weight = find_reach(
                row_ptr,
                listed_ptr,
                num_listed,
                peak,
                sharpness,
                edge,
                tl.where(is_top_k, limit, 1),
                tl.where(is_top_k, 0, wanted_weight),
                VOCAB,
                SEGMENT,
                SEGMENTS,
            )
            each = units(found, sharpness)
            if is_top_k:
                kept_weight = weight + (limit - count).to(tl.int64) * each
                wanted_weight = (kept_weight.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64)
            elif is_top_p:
                needed = tl.maximum(tl.cdiv(wanted_weight - weight, tl.maximum(each, 1)), 1)
                kept_weight = weight + needed * each
            else:
                place = (wanted_weight - 1 - weight) // tl.maximum(each, 1)
            edge = found
    return nth_at_distance(row_ptr, listed_ptr, num_listed, peak, edge, place, VOCAB, SEGMENT, SEGMENTS)
