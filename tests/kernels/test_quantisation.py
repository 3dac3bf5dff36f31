"""Rows survive quantising as well as one byte allows, whatever is in them."""

from __future__ import annotations

import pytest
import torch

from kernels.quantisation import LARGEST_CODE, dequantise, is_quantised, quantise

DTYPES = list(LARGEST_CODE)


def rows(head_dim: int = 64) -> torch.Tensor:
    """[300, 2, head_dim], of magnitudes from 1e-30 to 1e30."""
    generator = torch.Generator().manual_seed(head_dim)
    return torch.randn(300, 2, head_dim, generator=generator) * 10.0 ** torch.arange(-30, 30, 0.2)[:, None, None]


def test_only_one_byte_dtypes_are_quantised() -> None:
    assert [is_quantised(dtype) for dtype in (torch.int8, torch.float8_e4m3fn)] == [True, True]
    assert [is_quantised(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)] == [False] * 3


@pytest.mark.parametrize("head_dim", [1, 20, 64, 256])
def test_int8_is_off_by_half_a_step_at_most(head_dim: int) -> None:
    source = rows(head_dim)
    codes, scales = quantise(source, torch.int8)
    error = (codes.double() * scales.double()[..., None] - source.double()).abs()
    assert (error <= scales.double()[..., None] * 0.5 * (1 + 1e-5)).all()


@pytest.mark.parametrize("head_dim", [1, 20, 64, 256])
def test_fp8_is_off_by_a_sixteenth_of_the_element_or_half_the_smallest_step(head_dim: int) -> None:
    source = rows(head_dim)
    codes, scales = quantise(source, torch.float8_e4m3fn)
    error = (codes.double() * scales.double()[..., None] - source.double()).abs()
    bound = (source.double().abs() / 16).maximum(scales.double()[..., None] * 2**-10)
    assert (error <= bound * (1 + 1e-5)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_element_of_a_row_gets_the_largest_code(dtype: torch.dtype) -> None:
    source = rows()
    codes, _ = quantise(source, dtype)
    largest = source.abs().argmax(-1, keepdim=True)
    assert (codes.float().gather(-1, largest).abs() == LARGEST_CODE[dtype]).all()
    assert torch.equal(codes.float().gather(-1, largest).sign(), source.gather(-1, largest).sign())


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_come_back_as_the_codes_they_were(dtype: torch.dtype) -> None:
    """Quantising what was dequantised changes nothing: a swapped or copied page may be stored again."""
    codes, scales = quantise(rows(), dtype)
    again, _ = quantise(dequantise(codes, scales), dtype)
    assert torch.equal(again.float(), codes.float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zeros(dtype: torch.dtype) -> None:
    source = torch.zeros(2, 1, 64)
    source[1] = 1e-45  # too small for a scale of its own
    codes, scales = quantise(source, dtype)
    assert torch.equal(scales, torch.zeros(2, 1))
    assert torch.equal(dequantise(codes, scales), torch.zeros(2, 1, 64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_with_a_number_that_is_none_reads_as_nan_and_spares_the_others(dtype: torch.dtype, bad: float) -> None:
    source = torch.ones(2, 2, 64)
    source[1, 0, 5] = bad
    codes, scales = quantise(source, dtype)
    restored = dequantise(codes, scales)
    assert restored[1, 0].isnan().all()
    assert torch.equal(codes[1, 0].float(), torch.zeros(64))
    restored[1, 0] = 1.0
    torch.testing.assert_close(restored, torch.ones(2, 2, 64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("source_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_16_bit_rows_are_quantised_as_the_float32_they_are(dtype: torch.dtype, source_dtype: torch.dtype) -> None:
    source = torch.randn(9, 2, 64).to(source_dtype)
    for one, other in zip(quantise(source, dtype), quantise(source.float(), dtype), strict=True):
        assert torch.equal(one.float(), other.float())
