"""MXFP4: 4-bit floats (E2M1) with a power of two for each 32 columns, as codes and scales that are exactly these.

Twice a 4-bit float is a whole number of -12 to 12: its code. Knows the orders in which a file's bytes hold columns, not
its tensors. Source: the OCP Microscaling formats specification (2023).
"""

from __future__ import annotations

import torch

GROUP = 32  # columns that share a scale
BLOCK_BYTES = 17  # of a group in a GGUF file: its scale, then 16 bytes of codes
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_PAIRS = torch.tensor([[_DOUBLED[byte & 15], _DOUBLED[byte >> 4]] for byte in range(256)], dtype=torch.int8)
_PAIR_OF_BYTE = _PAIRS.view(torch.int16).flatten()
_IS_NO_CODE = torch.tensor([(byte ^ 128) - 128 not in _DOUBLED for byte in range(256)])
_LEAST_SCALE = 2.0**-128


def codes_in_turn(blocks: torch.Tensor) -> torch.Tensor:
    """Int8 [rows, columns] of uint8 ``blocks`` [rows, groups, 16]: a byte is two columns that follow each other."""
    pairs = _PAIR_OF_BYTE.index_select(0, blocks.int().flatten())
    return pairs.view(torch.int8).view(len(blocks), 2 * blocks.shape[1:].numel())


def stored_codes(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of uint8 ``rows`` [rows, bytes] of a GGUF file: a byte is column c and column c + 16."""
    blocks = rows.view(len(rows), -1, BLOCK_BYTES)
    in_turn = codes_in_turn(blocks[..., 1:])
    return in_turn.view(len(rows), -1, GROUP // 2, 2).transpose(2, 3).flatten(1), scales_of(blocks[..., 0])


def scales_of(exponents: torch.Tensor) -> torch.Tensor:
    """What codes, which are twice the values, are multiplied with: float32, of uint8 exponents with a bias of 127."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.int() - 128)


def are_exact(codes: torch.Tensor, scales: torch.Tensor) -> bool:
    """Whether MXFP4 holds codes of a byte and float32 ``scales`` as they are."""
    fits = scales.ge(_LEAST_SCALE) & torch.frexp(scales).mantissa.eq(0.5)
    counts = torch.bincount(codes.view(torch.uint8).flatten(), minlength=256)
    return bool(fits.all()) and not bool(counts[_IS_NO_CODE].any())
