"""Rotary: position embedding by turning pairs of elements, and the rules that stretch it over longer contexts.

Knows positions, not requests. Invariant: how a token is turned follows from its own position alone, so that an answer
does not depend on chunks, on neighbours in a step or on what a prompt grows to; transformers differs where it turns
all tokens of a step by the longest (``docs/models.md``). The arithmetic is float32 in transformers' order.
"""

from __future__ import annotations

import math

import torch

from kernels.attention import AttentionBackend
from models.spec import RopeSpec

Rotation = tuple[torch.Tensor, torch.Tensor]


class Rotary:
    """Rotary position embedding (Su et al., 2021) that rotates element ``i`` with element ``i + dim / 2``.

    ``Rotary(positions)`` gives the cosines and sines of a step, float32 [num_tokens, 1, dim / 2], which all layers of
    one kind share: there is no table, so no largest position and nothing to grow.
    """

    def __init__(self, rope: RopeSpec, head_dim: int, backend: AttentionBackend, *, device: torch.device) -> None:
        self._backend = backend
        self._rope = rope
        self._dim = rope.dim or head_dim
        self._frequencies = rotary_frequencies(rope, self._dim).to(device)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        positions = positions[:, None, None]
        frequencies = self._frequencies
        if self._rope.scaling == "dynamic":
            frequencies = dynamic_frequencies(self._rope, self._dim, positions)
        cosines, sines = self._backend.rotation(positions, frequencies)
        factor = self._rope.attention_factor
        return (cosines, sines) if factor == 1.0 else (cosines * factor, sines * factor)


def rotary_frequencies(rope: RopeSpec, dim: int) -> torch.Tensor:
    """Angle per position of each of the dim / 2 pairs, float32; of "dynamic" within the context it was trained on."""
    powers = rope.theta ** _exponents(dim)
    match rope.scaling:
        case "default" | "dynamic":
            return 1.0 / powers
        case "linear":
            return 1.0 / powers / rope.parameters["factor"]
        case "factors":
            return 1.0 / powers / torch.tensor(rope.frequency_factors, dtype=torch.float32)
        case "longrope":
            return 1.0 / (torch.tensor(rope.long_factors or rope.frequency_factors, dtype=torch.float32) * powers)
        case "llama3":
            return _llama3_frequencies(1.0 / powers, rope)
        case "yarn":
            return _yarn_frequencies(powers, rope, dim)
    raise ValueError(f"unknown rotary scaling {rope.scaling!r}")


def dynamic_frequencies(rope: RopeSpec, dim: int, positions: torch.Tensor) -> torch.Tensor:
    """`rotary_frequencies` [..., dim / 2] of each of ``positions`` [..., 1], where the base grows with the context.

    A token is turned as if the context ended with it: as it was when it was the newest one (NTK-aware scaling, 2023).
    """
    factor, longest = rope.parameters["factor"], rope.parameters["max_position_embeddings"]
    lengths = (positions + 1).clamp(min=int(longest))
    bases = rope.theta * (factor * lengths / longest - (factor - 1.0)) ** (dim / (dim - 2))
    return 1.0 / bases ** _exponents(dim, positions.device)


def _exponents(dim: int, device: torch.device | None = None) -> torch.Tensor:
    """Made on the device, so that a graph of its work may hold it."""
    return torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim


def _llama3_frequencies(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long waves slowed by ``factor``, short ones kept, a linear blend between (the rule of Llama 3.1)."""
    factor, low, high, context = (
        rope.parameters[name]
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = context * frequencies / (2 * math.pi)  # over the context the model was first trained on
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / factor + kept * frequencies


def _yarn_frequencies(powers: torch.Tensor, rope: RopeSpec, dim: int) -> torch.Tensor:
    """As llama3's, but blended linearly by the number of a pair, between those that turn ``beta`` times (YaRN)."""
    context = rope.parameters["original_max_position_embeddings"]
    first, last = (
        dim * math.log(context / (rope.parameters[beta] * 2 * math.pi)) / (2 * math.log(rope.theta))
        for beta in ("beta_fast", "beta_slow")
    )
    if rope.parameters["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001  # a step, not a slope
    slowed = ((torch.arange(dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)
    kept = 1.0 - slowed
    return 1.0 / (rope.parameters["factor"] * powers) * (1.0 - kept) + 1.0 / powers * kept
