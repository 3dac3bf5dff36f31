"""The head's benchmark on a head that it can check by itself."""

from __future__ import annotations

import pytest
import torch

from benchmarks.head import Asked, share_read_in_full
from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import QuantisedMatrix, QuantisedProduct, WeightKind


def asked(weights: torch.Tensor) -> Asked:
    matrix = QuantisedMatrix(NativeLibrary(), WeightKind.Q8_PLANES, *weights.shape)
    matrix.pack_floats(0, weights)
    return Asked(QuantisedProduct([matrix]), torch.ones(256, weights.shape[1]), torch.ones(weights.shape[1]), 1e-6)


def test_a_first_panel_that_outweighs_all_rules_out_the_others() -> None:
    weights = torch.full((64, 32), -1.0)
    weights[:16] = 1.0
    share, read = share_read_in_full(asked(weights))
    assert share == 1 / 4
    assert read == pytest.approx((2 + 16 * 1.25) / 34)


def test_panels_that_are_alike_are_all_needed() -> None:
    assert share_read_in_full(asked(torch.ones(64, 32))) == (1.0, 1.0)
