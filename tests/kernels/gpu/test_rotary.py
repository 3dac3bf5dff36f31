from __future__ import annotations

import pytest
import torch

from kernels import reference_layers
from kernels.gpu.rotary import rotate

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


def angles(num_tokens: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    turns = torch.arange(num_tokens)[:, None] * 10000.0 ** -(torch.arange(pairs) / pairs)
    return turns.cos(), turns.sin()


def heads(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=0, atol=TOLERANCE[actual.dtype])


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_heads", "head_dim", "rotary_dim"), [(1, 64, 64), (5, 80, 80), (3, 128, 32), (40, 96, 6)])
def test_whole_and_partial_heads_equal_the_reference(
    num_heads: int, head_dim: int, rotary_dim: int, dtype: torch.dtype, interleaved: bool, device: torch.device
) -> None:
    x = heads(3, num_heads, head_dim).to(dtype)
    cos, sin = angles(3, rotary_dim // 2)
    turned = rotate(x.to(device), cos.to(device), sin.to(device), interleaved=interleaved)
    assert_near(turned, reference_layers.rotate(x, cos, sin, interleaved=interleaved))
    assert torch.equal(turned[..., rotary_dim:].cpu(), x[..., rotary_dim:])


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
def test_heads_of_a_projection_turn_in_place_and_nothing_beside_them_changes(
    interleaved: bool, device: torch.device
) -> None:
    projected = heads(4, 5 * 48).to(device)
    projected[:, 3 * 48 :] = float("nan")
    before = projected.clone()
    query = projected[:, : 3 * 48].view(4, 3, 48)
    cos, sin = (part.to(device) for part in angles(4, 12))
    expected = reference_layers.rotate(query.cpu(), cos.cpu(), sin.cpu(), interleaved=interleaved)
    rotate(query, cos[:, None], sin[:, None], interleaved=interleaved, output=query)
    assert_near(query, expected)
    untouched = torch.ones_like(projected, dtype=torch.bool)
    untouched.view(4, 5, 48)[:, :3, :24] = False
    torch.testing.assert_close(projected[untouched], before[untouched], rtol=0, atol=0, equal_nan=True)


def test_position_zero_turns_nothing(device: torch.device) -> None:
    x = heads(1, 2, 64).to(device)
    cos, sin = (part.to(device) for part in angles(1, 32))
    assert torch.equal(rotate(x, cos, sin), x)


def test_a_step_without_tokens_turns_nothing(device: torch.device) -> None:
    nothing = torch.empty(0, 2, 64, device=device)
    assert rotate(nothing, *(torch.empty(0, 32, device=device) for _ in range(2))).shape == (0, 2, 64)


def test_angles_that_do_not_fit_are_refused(device: torch.device) -> None:
    x = heads(3, 2, 64).to(device)
    cos, sin = (part.to(device) for part in angles(3, 48))
    with pytest.raises(ValueError, match="do not fit"):
        rotate(x, cos, sin)
    with pytest.raises(ValueError, match="do not fit"):
        rotate(x, cos[:2, :16].contiguous(), sin[:2, :16].contiguous())
    with pytest.raises(ValueError, match="dense float32"):
        rotate(x, cos[:, :16].contiguous().half(), sin[:, :16].contiguous().half())
