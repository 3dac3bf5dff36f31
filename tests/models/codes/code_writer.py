"""Matrices of random codes, and the tensors that published checkpoints hold for them, packed code by code.

Written from the descriptions of the formats, number by number, so that it shares nothing with the reader.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # the element that each 4 bits of a word hold, from the lowest


@dataclass(frozen=True)
class Codes:
    """``codes`` int64 [rows, columns], ``scales`` and ``zeros`` [rows, groups]; ``groups`` [columns]: a column's."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    groups: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        """Float32 [rows, columns]."""
        zeros, scales = self.zeros[:, self.groups], self.scales.float()[:, self.groups]
        return (self.codes - zeros).float() * scales


def draw(
    rows: int,
    columns: int,
    group: int,
    *,
    bits: int = 4,
    zero: int | None = None,
    shuffled: bool = False,
    dtype: torch.dtype = torch.float16,
    seed: int = 3,
) -> Codes:
    """Random codes; ``zero``: of all groups, or random ones. ``shuffled``: columns of a group lie anywhere."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (rows, columns), generator=random)
    num_groups = columns // group
    scales = ((torch.rand(rows, num_groups, generator=random) * 0.32 + 0.032) / (1 << bits)).to(dtype)
    zeros = torch.randint(1, 1 << bits, (rows, num_groups), generator=random)
    if zero is not None:
        zeros = torch.full_like(zeros, zero)
    groups = torch.arange(columns) // group
    if shuffled:
        groups = groups[torch.randperm(columns, generator=random)]
    return Codes(codes, scales, zeros, groups)


def packed(codes: torch.Tensor, bits: int, places: tuple[int, ...] | None = None) -> torch.Tensor:
    """int32 [rows, columns * bits / 32]: consecutive codes of a row in a word, the first in the lowest bits."""
    per_word = 32 // bits
    words = []
    for row in codes.tolist():
        for start in range(0, len(row), per_word):
            word = 0
            for place in range(per_word):
                word |= row[start + (place if places is None else places[place])] << bits * place
            words.append(word - (1 << 32) if word >= 1 << 31 else word)
    return torch.tensor(words, dtype=torch.int32).view(len(codes), -1)


def gptq(codes: Codes, bits: int = 4, *, stored_zeros: int = -1) -> dict[str, torch.Tensor]:
    """``stored_zeros`` is what is added to zeros when they are stored: -1 in the format "gptq", 0 in "gptq_v2"."""
    return {
        "qweight": packed(codes.codes, bits).T.contiguous(),
        "qzeros": packed((codes.zeros + stored_zeros).T, bits),
        "scales": codes.scales.T.contiguous(),
        "g_idx": codes.groups.int(),
    }


def awq(codes: Codes) -> dict[str, torch.Tensor]:
    return {
        "qweight": packed(codes.codes.T, 4, AWQ_PLACES),
        "qzeros": packed(codes.zeros.T, 4, AWQ_PLACES),
        "scales": codes.scales.T.contiguous(),
    }


def pack_quantized(codes: Codes, bits: int = 4, *, is_symmetric: bool) -> dict[str, torch.Tensor]:
    """compressed-tensors' own packing; a symmetric one has no zeros, and means half the range."""
    parts = {
        "weight_packed": packed(codes.codes, bits),
        "weight_scale": codes.scales,
        "weight_shape": torch.tensor(codes.codes.shape),
    }
    if not is_symmetric:
        parts["weight_zero_point"] = packed(codes.zeros.T, bits).T.contiguous()
    return parts
