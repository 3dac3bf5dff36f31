"""Sampler: one token per row of logits, by each request's own parameters.

Rows never touch each other: each is filtered and drawn alone, so a request's tokens do not depend on its neighbours.
The generator is counter-based: the draw of output token i is a function of (seed, i) alone, so that preemption,
batching and chunking cannot shift it. Filters apply in the order temperature, top-k, top-p, min-p; a row with a filter
draws over tokens from likely to unlikely, equals by id, one without draws over ids. NaN counts as -inf, and a row of
nothing else as one of equal logits.

One rule, computed twice: by the native library (``kernels.cpu.sampling``), and by torch where it is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.sampling_params import SamplingParams
from kernels.cpu.library import NativeLibrary, best_library
from kernels.cpu.sampling import RowSampling, sample

_FIRST_LOOK = 512  # candidates sorted at first
_WIDER = 16  # how many times more are sorted when those do not suffice
_LEAST = -707.0  # logarithm of the smallest weight that counts: float64 has smaller ones, but not in full precision


class Sampler:
    """Stateless but for its library: everything a draw needs is in its arguments."""

    def __init__(self, library: NativeLibrary | None = None) -> None:
        """Without a ``library`` torch computes all."""
        self._library = library

    @classmethod
    def best(cls) -> Sampler:
        """With the native library, if it is there."""
        return cls(best_library())

    def sample(self, logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[float]) -> list[int]:
        """Choose a token id per row of float32 ``logits`` [num_rows, vocab]; ``draws[i]`` in [0, 1) decides row i."""
        rows = [
            RowSampling(one.temperature, one.top_k, one.top_p, one.min_p, draw)
            for one, draw in zip(params, draws, strict=True)
        ]
        if self._library is not None:
            return sample(self._library, logits, rows)
        return [_sample_row(row, one) for row, one in zip(logits, rows, strict=True)]


def child_seed(seed: int, child: int) -> int:
    """The seed of sample number ``child`` of a prompt; sample 0 has the prompt's own."""
    return seed if child == 0 else _mix((seed + child * 0xD1342543DE82EF95) & ((1 << 64) - 1))


def uniform_draw(seed: int, index: int) -> float:
    """The ``index``-th number in [0, 1) of the stream ``seed``, by two rounds of SplitMix64's finaliser.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    mask = (1 << 64) - 1
    state = _mix((seed & mask) ^ 0x9E3779B97F4A7C15)
    return (_mix((state + index * 0x9E3779B97F4A7C15) & mask) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    mask = (1 << 64) - 1
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def _sample_row(logits: torch.Tensor, row: RowSampling) -> int:
    largest = logits.max()
    if largest.isnan():
        logits = logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        largest = logits.max()
    if row.temperature == 0.0:
        return int(logits.argmax())
    # divided after subtracting the maximum, so that a tiny temperature underflows to greedy instead of overflowing
    scaled = torch.where(logits == largest, 0.0, logits - largest).double().div_(row.temperature)
    scaled[scaled < _LEAST] = -math.inf
    if row.top_k == 0 and row.top_p == 1.0 and row.min_p == 0.0:
        return _inverse_cdf(scaled.exp_(), row.draw)
    kept, token_ids = _kept_candidates(scaled, row)
    return int(token_ids[_inverse_cdf(kept, row.draw)])


def _kept_candidates(scaled: torch.Tensor, row: RowSampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the tokens that pass the filters, most likely first, and their ids.

    Sorting 262,144 logits costs more than all layers of a small model, so without a top-k a few candidates are sorted
    first, and more only while those do not hold the mass that was asked for.
    """
    limit = min(row.top_k or scaled.numel(), scaled.numel())
    whole_vocabulary = limit == scaled.numel()
    look = min(limit, _FIRST_LOOK) if whole_vocabulary else limit
    total = float(scaled.exp().sum()) if whole_vocabulary else math.nan
    while True:
        ordered, token_ids = _largest(scaled, look)
        weights = ordered.exp()
        keep = look
        if row.top_p < 1.0:
            wanted = row.top_p * (total if whole_vocabulary else float(weights.sum()))
            keep = min(keep, int(torch.searchsorted(weights.cumsum(0), wanted)) + 1)
        if row.min_p > 0.0:
            keep = min(keep, int((weights >= row.min_p).sum()))
        if keep < look or look == limit:
            return weights[:keep], token_ids[:keep]
        look = min(limit, look * _WIDER)


def _largest(scaled: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` largest in order, the first of equals first, and where they are."""
    near = torch.arange(scaled.numel())
    if count < scaled.numel():
        near = (scaled >= torch.topk(scaled, count).values[-1]).nonzero().flatten()
    ordered, places = torch.sort(scaled[near], descending=True, stable=True)
    return ordered[:count], near[places[:count]]


def _inverse_cdf(weights: torch.Tensor, draw: float) -> int:
    cumulative = weights.cumsum(0)
    index = int(torch.searchsorted(cumulative, draw * float(cumulative[-1]), right=True))
    # the product may round up to the sum, which no token exceeds
    return index if index < weights.numel() else int(weights.nonzero()[-1])
