"""Codes and inputs at their limits: sums of their products stay exact, in however few bits they are added up."""

from __future__ import annotations

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import QuantisedMatrix, QuantisedProduct, WeightKind

COLUMNS = 768
SCALES = {  # where in a block of ggml those lie that are halves; of MXFP4 there is an exponent
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q6_K": (208,),
    "Q3_K": (108,),
    "Q2_K": (80, 82),
    "MXFP4": (),
}
PATTERNS = [[0x00], [0xFF], [0x7F], [0x80], [0x0F], [0xF0], [0x00, 0xFF], [0x7F, 0x80], [0x0F, 0xF0]]


def filled(library: NativeLibrary, kind: WeightKind) -> QuantisedMatrix:
    """A row for each pattern, whose bytes are all its codes, with scales of 1 or the like."""
    matrix = QuantisedMatrix(library, kind, len(PATTERNS), COLUMNS)
    if kind.name.startswith(("CODES", "FP8")):
        codes = torch.tensor([(pattern * COLUMNS)[:COLUMNS] for pattern in PATTERNS], dtype=torch.uint8)
        if kind.name.startswith("CODES4"):
            codes &= 0x0F
        if kind.name.startswith("FP8"):
            codes = torch.where(codes & 0x7F == 0x7F, codes - 1, codes)  # there is no NaN
        scales = torch.ones(len(PATTERNS), COLUMNS // (128 if kind.name.endswith("WIDE") else 32))
        zeros = torch.full(scales.shape, 255, dtype=torch.uint8) if kind.name.startswith("CODES4") else None
        matrix.pack_codes(0, codes, scales, zeros)
        return matrix
    name = "Q8_0" if kind is WeightKind.Q8_PLANES else kind.name
    block, block_bytes = gguf.constants.GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    rows = torch.tensor([(pattern * block_bytes)[:block_bytes] for pattern in PATTERNS], dtype=torch.uint8)
    for place in SCALES.get(name, (0,)):
        rows[:, place : place + 2] = torch.ones(1, dtype=torch.float16).view(torch.uint8)
    if kind is WeightKind.MXFP4:
        rows[:, 0] = 128
    matrix.pack_stored(0, rows.repeat(1, COLUMNS // block))
    return matrix


def extreme_inputs() -> torch.Tensor:
    """Rows whose every code is 127 or -127, of one sign, of signs that alternate in runs, and at random."""
    columns = torch.arange(COLUMNS)
    runs = [torch.where(columns // run % 2 == 0, 127.0, -127.0) for run in (1, 2, 4, 8, 16, 32)]
    random = torch.randint(0, 2, (4, COLUMNS), generator=torch.Generator().manual_seed(0)) * 254.0 - 127.0
    return torch.stack([torch.full((COLUMNS,), 127.0), torch.full((COLUMNS,), -127.0), *runs, *random])


@pytest.mark.parametrize("kind", list(WeightKind), ids=lambda kind: kind.name)
def test_the_largest_codes_times_the_largest_inputs_are_added_up_exactly(
    library: NativeLibrary, kind: WeightKind
) -> None:
    matrix, inputs = filled(library, kind), extreme_inputs()
    weights = matrix.unpack(torch.arange(len(PATTERNS))).double()
    expected, sizes = inputs.double() @ weights.T, inputs.double().abs() @ weights.abs().T
    if kind.name in ("Q2_K", "Q4_K", "Q5_K", "Q4_1", "Q5_1"):  # codes and minima cancel in the weights
        sizes = sizes + 127.0 * COLUMNS * weights.abs().max()
    product = QuantisedProduct([matrix])
    for count in (1, 2, 3, 4, 5, len(inputs)):
        outputs = torch.cat([product.multiply(part) for part in inputs.split(count)])
        assert ((outputs.double() - expected).abs() <= 2e-6 * sizes).all(), f"{count} rows at a time"
