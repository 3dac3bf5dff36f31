"""One token per row of logits, each row by its own parameters, without sorting the vocabulary.

The same rule as the engine's own sampler: temperature, top-k, top-p, min-p, then the inverse of the cumulative
distribution at a uniform draw that is a function of (seed, output index) alone. So a GPU and a CPU choose the same
token wherever their rounding does not decide, which drawing by Gumbel noise would not give.

Contract
    logits          [num_rows, vocab_size], float32, bfloat16 or float16, dense last dimension
    parameters      see ``SamplingInputs``; a temperature of 0 is greedy: the largest logit, the lowest id of equals
    tokens          int64 [num_rows]

How: every filter keeps the likeliest tokens up to some distance below the largest logit, and the draw, over tokens from
likely to unlikely, ends at some distance too. Distances are float32 numbers >= 0, which order like their bits, so each
is found by bisection (``kernels.gpu.draw``): measure the tokens up to a distance, how many and their weight, halve,
and jump to the nearest token. Only segments of the vocabulary whose nearest token is within reach are measured: for a
top-k of 50 at most 50 segments of 128 tokens. Rows without filters draw by token id, from sums of chunks.

    summarise   the vocabulary's segments: their largest logits; its chunks: the weight of each beside its own largest
    sample      one program per row: parameters, bisections, token

Numerics: a weight is 2 ** (distance / temperature) in float32; filters and draws add weights as 64-bit integers in
units of 2 ** -40, which have no order of addition, and the draw multiplies 53 bits exactly. A weight below 2 ** -41
counts as 0. NaN counts as -inf. A row's token depends on itself only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.draw import draw_by_distance, draw_by_id, uniform_bits
from kernels.gpu.reach import INFINITE, distance, load_logits, sharpness_of, weigh
from kernels.gpu.variant import Variant, pointer, warps_here

SEGMENT = 128
CHUNK_SEGMENTS = 32  # 4,096 tokens: one program of ``summarise``
LISTED_SEGMENTS = 16  # 2,048 tokens: what ``sample`` measures at once
FIRST_SEGMENTS = 64  # looked at first where the weight that is wanted does not say how many tokens make it up
SUMMARISE_WARPS = 4
SAMPLE_WARPS = 8
LARGEST_VOCABULARY = 2**20
PARAMETER_DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seed": torch.int64,
    "output_index": torch.int64,
}


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """The parameters of each row, on the logits' device, [num_rows] each.

    ``temperature``, ``top_p``, ``min_p`` float32; ``top_k`` int32; ``seed``, ``output_index`` int64. ``top_k`` 0,
    ``top_p`` 1 and ``min_p`` 0 switch their filters off.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    output_index: torch.Tensor


@triton.jit
def summarise_kernel(
    segment_peaks_ptr,
    chunk_peaks_ptr,
    chunk_weights_ptr,
    chunk_best_ptr,
    logits_ptr,
    temperature_ptr,
    row_stride,
    VOCAB: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """One chunk of one row: peaks of its segments, its own peak and where, and its weight. Grid: (chunks, rows)."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    segments = chunk * SEGMENTS + tl.arange(0, SEGMENTS)
    ids = segments[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
    logits = load_logits(logits_ptr + row * row_stride, ids, ids < VOCAB)
    peaks = tl.max(logits, axis=1)
    peak = tl.max(peaks, axis=0)
    best = tl.min(tl.where((logits == peak) & (ids < VOCAB), ids, VOCAB - 1))
    sharpness = sharpness_of(tl.load(temperature_ptr + row))
    weights = tl.where(ids < VOCAB, weigh(distance(logits, peak), sharpness), 0.0)
    tl.store(segment_peaks_ptr + row * NUM_CHUNKS * SEGMENTS + segments, peaks)
    slot = row * NUM_CHUNKS + chunk
    tl.store(chunk_peaks_ptr + slot, peak)
    tl.store(chunk_best_ptr + slot, best)
    tl.store(chunk_weights_ptr + slot, tl.sum(weights))


@triton.jit
def sample_kernel(
    tokens_ptr,
    listed_ptr,
    segment_peaks_ptr,
    chunk_peaks_ptr,
    chunk_weights_ptr,
    chunk_best_ptr,
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    output_index_ptr,
    row_stride,
    VOCAB: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    LISTED_SEGMENTS: tl.constexpr,
    NUM_SEGMENTS: tl.constexpr,
    FIRST_SEGMENTS: tl.constexpr,
):
    """The token of one row. ``listed`` int32 [rows, NUM_SEGMENTS] is for its own use. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS_PADDED)
    is_chunk = chunks < NUM_CHUNKS
    chunk_peaks = tl.load(chunk_peaks_ptr + row * NUM_CHUNKS + chunks, mask=is_chunk, other=float("-inf"))
    peak = tl.max(chunk_peaks, axis=0)
    temperature = tl.load(temperature_ptr + row)
    if temperature <= 0.0:
        first = tl.min(tl.where(is_chunk & (chunk_peaks == peak), chunks, NUM_CHUNKS - 1), axis=0)
        tl.store(tokens_ptr + row, tl.load(chunk_best_ptr + row * NUM_CHUNKS + first).to(tl.int64))
        return

    sharpness = sharpness_of(temperature)
    row_ptr = logits_ptr + row * row_stride
    draw = uniform_bits(tl.load(seed_ptr + row), tl.load(output_index_ptr + row))
    chunk_weights = tl.load(chunk_weights_ptr + row * NUM_CHUNKS + chunks, mask=is_chunk, other=0.0)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    if (top_k <= 0) & (top_p >= 1.0) & (min_p <= 0.0):
        token = draw_by_id(
            row_ptr, chunk_peaks, chunk_weights, peak, sharpness, draw, VOCAB, CHUNKS_PADDED, SEGMENT, SEGMENTS
        )
        tl.store(tokens_ptr + row, token.to(tl.int64))
        return

    segments = tl.arange(0, NUM_SEGMENTS)
    segment_peaks = tl.load(
        segment_peaks_ptr + row * NUM_CHUNKS * SEGMENTS + segments,
        mask=segments < NUM_CHUNKS * SEGMENTS,
        other=float("-inf"),
    )
    is_segment = segments * SEGMENT < VOCAB
    segment_bits = distance(segment_peaks, peak).to(tl.int32, bitcast=True)
    segment_bits = tl.where(is_segment, segment_bits, INFINITE + 1)
    scaled = weigh(distance(chunk_peaks, peak), sharpness).to(tl.float64) * chunk_weights.to(tl.float64)
    token = draw_by_distance(
        row_ptr,
        listed_ptr + row * NUM_SEGMENTS,
        segment_bits,
        tl.sum(tl.where(chunk_weights > 0.0, scaled, 0.0), axis=0),
        peak,
        sharpness,
        temperature,
        top_k,
        top_p,
        min_p,
        draw,
        VOCAB,
        SEGMENT,
        LISTED_SEGMENTS,
        NUM_SEGMENTS,
        FIRST_SEGMENTS,
    )
    tl.store(tokens_ptr + row, token.to(tl.int64))


def sample(logits: torch.Tensor, inputs: SamplingInputs) -> torch.Tensor:
    """A token id per row. Shapes: see the module."""
    num_rows, vocab_size = logits.shape
    check(logits, inputs)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return tokens
    shape = shape_constants(vocab_size)
    num_chunks, num_segments = shape["NUM_CHUNKS"], shape["NUM_SEGMENTS"]
    segment_peaks = logits.new_empty((num_rows, num_chunks * CHUNK_SEGMENTS), dtype=torch.float32)
    chunk_peaks, chunk_weights = logits.new_empty((2, num_rows, num_chunks), dtype=torch.float32)
    chunk_best = logits.new_empty((num_rows, num_chunks), dtype=torch.int32)
    listed = logits.new_empty((num_rows, num_segments), dtype=torch.int32)
    summarise_kernel[(num_chunks, num_rows)](
        segment_peaks,
        chunk_peaks,
        chunk_weights,
        chunk_best,
        logits,
        inputs.temperature,
        logits.stride(0),
        VOCAB=vocab_size,
        NUM_CHUNKS=num_chunks,
        SEGMENT=SEGMENT,
        SEGMENTS=CHUNK_SEGMENTS,
        num_warps=SUMMARISE_WARPS,
        enable_fp_fusion=True,
    )
    sample_kernel[(num_rows,)](
        tokens,
        listed,
        segment_peaks,
        chunk_peaks,
        chunk_weights,
        chunk_best,
        logits,
        inputs.temperature,
        inputs.top_k,
        inputs.top_p,
        inputs.min_p,
        inputs.seed,
        inputs.output_index,
        logits.stride(0),
        **shape,
        num_warps=warps_here(SAMPLE_WARPS),
        enable_fp_fusion=True,
    )
    return tokens


def check(logits: torch.Tensor, inputs: SamplingInputs) -> None:
    """Raise ``ValueError`` where the kernels would read the wrong memory instead of failing."""
    num_rows, vocab_size = logits.shape
    if logits.stride(1) != 1 or not 0 < vocab_size <= LARGEST_VOCABULARY:
        raise ValueError(f"logits {tuple(logits.shape)} need dense rows of 1 to {LARGEST_VOCABULARY} tokens")
    for name, dtype in PARAMETER_DTYPES.items():
        values = getattr(inputs, name)
        if values.shape != (num_rows,) or values.dtype != dtype or values.stride(0) != 1:
            raise ValueError(f"{name} {tuple(values.shape)} {values.dtype} must be {dtype} of {num_rows} rows, dense")


def shape_constants(vocab_size: int) -> dict[str, int]:
    """The constants of ``sample_kernel`` for a vocabulary."""
    num_chunks = triton.cdiv(vocab_size, SEGMENT * CHUNK_SEGMENTS)
    return {
        "VOCAB": vocab_size,
        "NUM_CHUNKS": num_chunks,
        "CHUNKS_PADDED": max(2, triton.next_power_of_2(num_chunks)),
        "SEGMENT": SEGMENT,
        "SEGMENTS": CHUNK_SEGMENTS,
        "LISTED_SEGMENTS": LISTED_SEGMENTS,
        "NUM_SEGMENTS": triton.next_power_of_2(num_chunks * CHUNK_SEGMENTS),
        "FIRST_SEGMENTS": FIRST_SEGMENTS,
    }


def variants() -> list[Variant]:
    """Both kernels for the vocabularies of Gemma (262,144), Llama 3 (128,256) and Llama 2 (32,000)."""
    floats = ("segment_peaks_ptr", "chunk_peaks_ptr", "chunk_weights_ptr")
    summaries = {name: pointer(torch.float32) for name in floats} | {"chunk_best_ptr": pointer(torch.int32)}
    parameters = {f"{name}_ptr": pointer(dtype) for name, dtype in PARAMETER_DTYPES.items()}
    results = {"tokens_ptr": pointer(torch.int64), "listed_ptr": pointer(torch.int32)}
    vocabularies = {
        torch.float32: (262_144, 128_256, 32_000),
        torch.bfloat16: (262_144, 128_256),
        torch.float16: (128_256,),
    }
    found = []
    for dtype, sizes in vocabularies.items():
        for vocab_size in sizes:
            name = f"{vocab_size} {str(dtype).removeprefix('torch.')}"
            shape = shape_constants(vocab_size)
            logits = {"logits_ptr": pointer(dtype)}
            found.append(
                Variant.of(
                    f"summarise {name}",
                    summarise_kernel,
                    summaries | logits | {"temperature_ptr": pointer(torch.float32)},
                    {key: shape[key] for key in ("VOCAB", "NUM_CHUNKS", "SEGMENT", "SEGMENTS")},
                    num_warps=SUMMARISE_WARPS,
                )
            )
            found.append(
                Variant.of(
                    f"sample {name}",
                    sample_kernel,
                    summaries | logits | parameters | results,
                    shape,
                    num_warps=SAMPLE_WARPS,
                )
            )
    return found
