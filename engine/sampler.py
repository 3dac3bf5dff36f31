"""Sampler: one token per row of logits, by each request's own parameters.

Rows never touch each other: each is filtered and drawn alone, so a request's tokens do not depend on its neighbours.
The generator is counter-based: the draw of output token i is a function of (seed, i) alone, so that preemption,
batching and chunking cannot shift it. Filters apply in the order temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.messages import SamplingParams

_FIRST_LOOK = 512  # candidates sorted at first
_WIDER = 16  # how many times more are sorted when those do not suffice


class Sampler:
    """Stateless: everything a draw needs is in its arguments."""

    def sample(self, logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[float]) -> list[int]:
        """Choose a token id per row of float32 ``logits`` [num_rows, vocab]; ``draws[i]`` in [0, 1) decides row i."""
        if all(one.temperature == 0.0 for one in params):
            return [int(token) for token in logits.argmax(dim=-1).tolist()]
        return [
            int(row.argmax()) if one.temperature == 0.0 else _sample_row(row, one, draw)
            for row, one, draw in zip(logits.cpu(), params, draws, strict=True)
        ]


def log_probability(logits: torch.Tensor, token_id: int) -> float:
    """Of a token under the model itself: no temperature, no filter. ``logits`` [vocab] in float32."""
    return float(logits[token_id] - logits.logsumexp(dim=-1))


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


def _sample_row(logits: torch.Tensor, params: SamplingParams, draw: float) -> int:
    # divided after subtracting the maximum, so that a tiny temperature underflows to greedy instead of overflowing
    scaled = (logits - logits.max()).double().div_(params.temperature)
    if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
        return _inverse_cdf(scaled.exp_(), draw)
    kept, token_ids = _kept_candidates(scaled, params)
    return int(token_ids[_inverse_cdf(kept, draw)])


def _kept_candidates(scaled: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the tokens that pass the filters, most likely first, and their ids.

    Sorting 262,144 logits costs more than all layers of a small model, so without a top-k a few candidates are sorted
    first, and more only while those do not hold the mass that was asked for.
    """
    limit = min(params.top_k or scaled.numel(), scaled.numel())
    whole_vocabulary = limit == scaled.numel()
    look = min(limit, _FIRST_LOOK) if whole_vocabulary else limit
    total = float(scaled.exp().sum()) if whole_vocabulary else math.nan
    while True:
        ordered, token_ids = _largest(scaled, look)
        weights = ordered.exp()
        keep = look
        if params.top_p < 1.0:
            wanted = params.top_p * (total if whole_vocabulary else float(weights.sum()))
            keep = min(keep, int(torch.searchsorted(weights.cumsum(0), wanted)) + 1)
        if params.min_p > 0.0:
            keep = min(keep, max(1, int((weights >= params.min_p).sum())))  # none reaches it only where all is NaN
        if keep < look or look == limit:
            return weights[:keep], token_ids[:keep]
        look = min(limit, look * _WIDER)


def _largest(scaled: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if count == scaled.numel():
        return torch.sort(scaled, descending=True, stable=True)
    return torch.topk(scaled, count)


def _inverse_cdf(weights: torch.Tensor, draw: float) -> int:
    cumulative = weights.cumsum(0)
    index = int(torch.searchsorted(cumulative, draw * float(cumulative[-1]), right=True))
    return min(index, weights.numel() - 1)  # NaN has no place among the sums: any token will do, but no error
