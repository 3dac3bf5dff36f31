"""The gates that backends without kernels of their own compute."""

from __future__ import annotations

import pytest
import torch

from kernels import reference_layers
from kernels.composed import gated

REFERENCE = {
    "silu": reference_layers.gate_silu,
    "gelu": reference_layers.gate_gelu,
    "gelu_tanh": reference_layers.gate_gelu_tanh,
    "swiglu_oai": reference_layers.gate_swiglu_oai,
}
ROUNDING = {torch.float32: 1e-6, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-7}


@pytest.mark.parametrize("activation", REFERENCE)
@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_every_gate_equals_its_reference(dtype: torch.dtype, activation: str) -> None:
    gate_up = (4 * torch.randn(5, 2 * 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    output = gated(gate_up, activation)
    assert (output.shape, output.dtype) == ((5, 50), dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    saturated = float((gate * up).abs().max()) * 2**-24  # 1 + tanh of a gate far below 0 is off by a last place of 1
    torch.testing.assert_close(output.double(), REFERENCE[activation](gate_up), rtol=ROUNDING[dtype], atol=saturated)


def test_the_gate_of_gpt_oss_is_limited_above_only_and_up_on_both_sides() -> None:
    """By hand: a gate of 9 counts as 7, one of -9 as itself; an up of 20 as 7, one of -20 as -7."""
    gates, ups = torch.tensor([9.0, -9.0, 2.0, 2.0]), torch.tensor([0.0, 0.0, 20.0, -20.0])
    output = gated(torch.cat([gates, ups])[None], "swiglu_oai")[0]
    limited, factors = torch.tensor([7.0, -9.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 8.0, -6.0])
    torch.testing.assert_close(output, factors * limited / (1 + torch.exp(-1.702 * limited)))
