from __future__ import annotations

import pytest
import torch

from kernels import reference_layers
from kernels.gpu.activations import BLOCK, Activation, gate

REFERENCE = {
    Activation.SILU: reference_layers.gate_silu,
    Activation.GELU: reference_layers.gate_gelu,
    Activation.GELU_TANH: reference_layers.gate_gelu_tanh,
    Activation.SWIGLU_OAI: reference_layers.gate_swiglu_oai,
}
ROUNDING = {torch.float32: 2e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-8}


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (3, 100), (2, BLOCK), (2, 2 * BLOCK + 1)])
def test_every_function_equals_the_reference(
    num_tokens: int, size: int, dtype: torch.dtype, activation: Activation, device: torch.device
) -> None:
    rows = 4 * torch.randn(num_tokens, 2 * size, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    gate_up = rows.to(dtype)
    output = gate(gate_up.to(device), activation)
    assert (output.shape, output.dtype) == ((num_tokens, size), dtype)
    torch.testing.assert_close(output.cpu().double(), REFERENCE[activation](gate_up), rtol=ROUNDING[dtype], atol=2e-6)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of the interpreter's numpy
@pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU, Activation.GELU_TANH])
def test_far_from_zero_the_gate_is_open_or_closed(activation: Activation, device: torch.device) -> None:
    gates = torch.tensor([100.0, 1e20, -100.0, -1e20, 0.0])
    output = gate(torch.cat([gates, torch.full((5,), 2.0)])[None].to(device), activation)
    assert output[0, :2].tolist() == (2 * gates[:2]).tolist()
    torch.testing.assert_close(output[0, 2:].cpu(), torch.zeros(3), rtol=0, atol=1e-30)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of the interpreter's numpy
def test_the_gate_and_up_of_gpt_oss_are_limited_and_one_is_added_to_up(device: torch.device) -> None:
    gates = torch.tensor([7.0, 1e20, 7.5, -1e20, 0.0, 7.0])
    ups = torch.tensor([7.0, 100.0, -7.5, 100.0, 3.0, -1.0])
    output = gate(torch.cat([gates, ups])[None].to(device), Activation.SWIGLU_OAI).cpu()
    open_gate = 7.0 / (1.0 + torch.tensor(-1.702 * 7.0).exp())
    expected = torch.stack([8 * open_gate, 8 * open_gate, -6 * open_gate, *torch.zeros(3)])
    torch.testing.assert_close(output[0], expected, rtol=1e-6, atol=1e-30)


def test_rows_of_a_wider_tensor_are_read_where_they_lie(device: torch.device) -> None:
    wide = torch.full((3, 50), float("nan"), device=device)
    wide[:, :40] = torch.ones(3, 40, device=device)
    expected = reference_layers.gate_silu(torch.ones(3, 40))
    torch.testing.assert_close(gate(wide[:, :40], Activation.SILU).cpu().double(), expected, rtol=0, atol=1e-6)


def test_an_empty_batch_is_an_empty_batch(device: torch.device) -> None:
    assert gate(torch.empty(0, 64, device=device), Activation.SILU).shape == (0, 32)


def test_an_odd_number_of_columns_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="as many ups"):
        gate(torch.ones(2, 7, device=device), Activation.SILU)
