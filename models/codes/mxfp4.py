"""MXFP4: 4-bit floats (E2M1) with a power of two for each 32 columns, as codes and scales that are exactly these.

Twice a 4-bit float is a whole number of -12 to 12. Knows the two ways in which files store stacks of experts: those of
gpt-oss, whose tensors come in pairs, and GGUF's blocks. Source: the OCP Microscaling formats specification (2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from models.safetensors_file import SafetensorsTensor

GROUP = 32  # columns that share a scale
BLOCK_BYTES = 17  # of a group in a GGUF file: its scale, then 16 bytes of codes
ENDINGS = ("blocks", "scales")
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_LOW, _HIGH = (
    torch.tensor([_DOUBLED[byte >> shift & 15] for byte in range(256)], dtype=torch.int8) for shift in (0, 4)
)


def single_experts(tensors: Iterable[SafetensorsTensor]) -> Iterator[SafetensorsTensor]:
    """``tensors``, with each stack ``experts.NAME_blocks`` or ``_scales`` cut into ``experts.0.NAME.blocks`` ..."""
    for tensor in tensors:
        stem, _, ending = tensor.name.rpartition("_")
        before, _, name = stem.rpartition(".")
        if ending not in ENDINGS or not before.endswith(".experts"):
            yield tensor
            continue
        num_experts = tensor.shape[0] if tensor.shape else 0
        size = len(tensor.data) // max(num_experts, 1)
        for expert in range(num_experts):
            data = tensor.data[expert * size : (expert + 1) * size]
            yield replace(tensor, name=f"{before}.{expert}.{name}.{ending}", shape=tensor.shape[1:], data=data)


def codes_in_turn(blocks: torch.Tensor) -> torch.Tensor:
    """Int8 [rows, columns] of uint8 ``blocks`` [rows, groups, 16]: a byte is two columns that follow each other."""
    low, high = _looked_up(blocks)
    return torch.stack([low, high], dim=-1).flatten(1)


def gguf_codes(stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of uint8 ``stored`` [rows, bytes] of a GGUF file: a byte is column c and column c + 16."""
    blocks = stored.view(len(stored), -1, BLOCK_BYTES)
    return torch.cat(_looked_up(blocks[..., 1:]), dim=-1).flatten(1), scales_of(blocks[..., 0])


def scales_of(exponents: torch.Tensor) -> torch.Tensor:
    """What codes, which are twice the values, are multiplied with: float32, of uint8 exponents with a bias of 127."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.int() - 128)


def _looked_up(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = blocks.int().flatten()
    return _LOW[places].view(blocks.shape), _HIGH[places].view(blocks.shape)
