from __future__ import annotations

import pytest
import torch

from kernels import reference_layers
from kernels.gpu.norms import LARGEST_SIZE, add_rms_norm, rms_norm, rms_norm_add

EPS = 1e-5
# Half a unit in the last place of a result near 4, and some float32 rounding for float32.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_near(actual: torch.Tensor, expected: torch.Tensor, *, roundings: int = 1) -> None:
    atol = roundings * TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (3, 7), (5, 96), (1, 640), (4, 2880), (33, 128)])
def test_rows_of_any_size_equal_the_reference(
    num_rows: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = normal(num_rows, size).to(dtype), normal(size, seed=1).clamp(-1, 1)
    assert_near(rms_norm(x.to(device), weight.to(device), EPS), reference_layers.rms_norm(x, weight, EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (5, 1000), (9, 40)])
def test_the_sum_is_rounded_returned_and_normed_as_rounded(
    num_rows: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, residual = normal(2, num_rows, size).to(dtype)
    weight = normal(size, seed=1).clamp(-1, 1).to(dtype)
    normed, total = add_rms_norm(x.to(device), residual.to(device), weight.to(device), EPS)
    assert torch.equal(total.cpu(), x + residual)
    assert_near(normed, reference_layers.add_rms_norm(x, residual, weight, EPS)[0])
    assert torch.equal(normed, rms_norm(total, weight.to(device), EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (5, 1000), (9, 40)])
def test_a_norm_is_rounded_before_it_is_added_to_the_residual(
    num_rows: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, residual = normal(2, num_rows, size).to(dtype)
    weight = normal(size, seed=1).clamp(-1, 1)
    total = rms_norm_add(x.to(device), residual.to(device), weight.to(device), EPS)
    assert_near(total, residual.double() + reference_layers.rms_norm(x, weight, EPS), roundings=2)
    assert torch.equal(total.cpu(), residual + rms_norm(x.to(device), weight.to(device), EPS).cpu())


def test_heads_of_a_fused_projection_are_normed_where_they_lie(device: torch.device) -> None:
    projected = normal(5, 3 * 64 + 7).to(device)
    projected[:, 3 * 64 :] = float("nan")
    heads = projected[:, : 3 * 64].view(5, 3, 64)
    weight = normal(64, seed=1).clamp(-1, 1)
    normed = rms_norm(heads, weight.to(device), EPS)
    assert normed.is_contiguous()
    assert_near(normed, reference_layers.rms_norm(heads.cpu(), weight, EPS))


def test_what_lies_between_rows_is_not_read(device: torch.device) -> None:
    wide = torch.full((4, 96), float("nan"), device=device)
    wide[:, :72] = normal(4, 72).to(device)
    weight = torch.ones(72, device=device)
    assert not rms_norm(wide[:, :72], weight, EPS).isnan().any()
    assert not add_rms_norm(wide[:, :72], wide[:, :72], weight, EPS)[0].isnan().any()


def test_a_row_of_zeros_stays_zero_and_large_rows_do_not_overflow(device: torch.device) -> None:
    x = torch.stack([torch.zeros(64), torch.full((64,), 6e4)]).to(torch.float16).to(device)
    assert rms_norm(x, torch.ones(64, device=device), EPS).tolist() == [[0.0] * 64, [1.0] * 64]


def test_a_row_has_the_same_bits_in_every_batch(device: torch.device) -> None:
    x, weight = normal(70, 128).to(device), normal(128, seed=1).to(device)
    assert torch.equal(rms_norm(x, weight, EPS)[41:42], rms_norm(x[41:42], weight, EPS))


def test_an_empty_batch_is_an_empty_batch(device: torch.device) -> None:
    nothing = torch.empty(0, 64, device=device)
    assert rms_norm(nothing, torch.ones(64, device=device), EPS).shape == (0, 64)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    x, weight = torch.ones(2, 64, device=device), torch.ones(64, device=device)
    with pytest.raises(ValueError, match="does not fit"):
        rms_norm(x, weight[:32], EPS)
    with pytest.raises(ValueError, match="is not like x"):
        add_rms_norm(x, x.half(), weight, EPS)
    with pytest.raises(ValueError, match="is not like x"):
        rms_norm_add(x, x[:1], weight, EPS)
    with pytest.raises(ValueError, match="dense last dimension"):
        rms_norm(x.T, weight[:2], EPS)
    with pytest.raises(ValueError, match="too long"):
        rms_norm(torch.ones(1, LARGEST_SIZE + 1), torch.ones(LARGEST_SIZE + 1), EPS)
