"""Rotary: position embedding by turning pairs of elements, and the rules that stretch it over longer contexts."""

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
        self._frequencies = rotary_frequencies(rope, rope.dim or head_dim).to(device)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        return self._backend.rotation(positions[:, None, None].float() * self._frequencies)


def rotary_frequencies(rope: RopeSpec, dim: int) -> torch.Tensor:
    """Angle per position of each of the dim / 2 pairs, float32."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope.scaling == "default":
        return frequencies
    if rope.scaling == "linear":
        return frequencies / rope.parameters["factor"]
    if rope.scaling == "factors":
        return frequencies / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    if rope.scaling == "llama3":
        return _llama3_frequencies(frequencies, rope)
    raise ValueError(f"unknown rotary scaling {rope.scaling!r}")


def _llama3_frequencies(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long waves slowed by ``factor``, short ones kept, a linear blend between (the rule of Llama 3.1)."""
    factor, low, high, context = (
        rope.parameters[name]
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = context * frequencies / (2 * math.pi)  # over the context the model was first trained on
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / factor + kept * frequencies
