"""Cosines and sines of a step's positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cpu.backend import TorchBackend


@pytest.mark.parametrize("per_position", [False, True])
def test_angles_are_products_in_float32_whatever_the_number_of_positions(per_position: bool) -> None:
    positions = torch.cat([torch.arange(300), torch.tensor([131_071, 16_777_217])])[:, None, None]
    frequencies = 1.0 / 1e6 ** (torch.arange(0, 256, 2, dtype=torch.float32) / 256)
    if per_position:
        frequencies = frequencies * torch.linspace(0.5, 1.0, 302)[:, None, None]
    cosines, sines = TorchBackend().rotation(positions, frequencies)
    angles = (positions.float() * frequencies).numpy()
    assert cosines.shape == (302, 1, 128)
    assert np.array_equal(cosines.numpy(), np.cos(angles))
    assert np.array_equal(sines.numpy(), np.sin(angles))
    one = TorchBackend().rotation(positions[7:8], frequencies[7:8] if per_position else frequencies)
    assert torch.equal(one[0], cosines[7:8])
    assert torch.equal(one[1], sines[7:8])
