"""Products of float weights whose rows have the same bits in any batch."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from kernels import reference_layers
from kernels.gpu.dense_gemm import WIDE_OUTPUT, dense_gemm, dense_gemm_tile
from kernels.gpu.moe_gemm import GemmTile

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Sums of about 150 products of numbers near 1, rounded to values near 32.
TOLERANCE = {torch.float32: 4e-5, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-3}
TALL = GemmTile(rows=128, columns=128, depth=64, num_warps=8, num_stages=3)  # what wide weights get


def normal(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


@pytest.mark.parametrize("tile", [None, TALL], ids=["narrow", "wide"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_rows", "out_features", "in_features"), [(1, 40, 150), (19, 130, 64), (150, 33, 129)])
def test_products_equal_those_of_float64(
    num_rows: int,
    out_features: int,
    in_features: int,
    has_bias: bool,
    dtype: torch.dtype,
    tile: GemmTile | None,
    device: torch.device,
) -> None:
    x = normal(num_rows, in_features, dtype=dtype, device=device)
    weight = normal(out_features, in_features, dtype=dtype, device=device, seed=1)
    bias = normal(out_features, dtype=dtype, device=device, seed=2) if has_bias else None
    output = dense_gemm(x, weight, bias, tile=tile)
    assert (output.shape, output.dtype) == ((num_rows, out_features), dtype)
    expected = reference_layers.dense_gemm(x.cpu(), weight.cpu(), None if bias is None else bias.cpu())
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("tile", "counts"),
    [  # all up to two row blocks of 16 and one, and around the borders of others
        (None, [*range(1, 34), 47, 48, 49, 63, 64, 65, 97, 127, 128, 129]),
        (TALL, [1, 2, 31, 64, 100, 127, 129]),
    ],
    ids=["narrow", "wide"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_batches_of_1_to_130_rows(
    dtype: torch.dtype, tile: GemmTile | None, counts: Iterable[int], device: torch.device
) -> None:
    x = normal(130, 70, dtype=dtype, device=device)
    weight, bias = (normal(*shape, dtype=dtype, device=device, seed=1 + len(shape)) for shape in ((40, 70), (40,)))
    whole = dense_gemm(x, weight, bias, tile=tile)
    for count in counts:
        assert torch.equal(dense_gemm(x[:count], weight, bias, tile=tile), whole[:count])
        if count % 8 == 1:  # the same rows elsewhere in their blocks
            assert torch.equal(dense_gemm(x[-count:], weight, bias, tile=tile), whole[-count:])


def test_more_row_blocks_than_run_side_by_side_keep_the_bits(device: torch.device) -> None:
    """Groups of row blocks, the last of them not full."""
    x = normal(16 * 21 + 3, 64, dtype=torch.float32, device=device)
    weight = normal(70, 64, dtype=torch.float32, device=device, seed=1)
    whole = dense_gemm(x, weight)
    torch.testing.assert_close(
        whole.cpu().double(), reference_layers.dense_gemm(x.cpu(), weight.cpu()), rtol=0, atol=4e-5
    )
    for start in range(0, len(x), 37):
        assert torch.equal(dense_gemm(x[start : start + 37], weight), whole[start : start + 37])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_leaks_from_rows_that_only_pad_nor_from_behind_the_last(
    dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.full((40, 96), float("nan"), dtype=dtype, device=device)
    real = [0, 3, 17]
    x[real] = normal(3, 96, dtype=dtype, device=device)
    weight = normal(33, 96, dtype=dtype, device=device, seed=1)
    alone = dense_gemm(x[real], weight)
    assert torch.isfinite(alone).all()
    assert torch.equal(dense_gemm(x, weight)[real], alone)
    assert torch.equal(dense_gemm(x[:18], weight)[real], alone)
    behind = torch.full((64, 96), float("nan"), dtype=dtype, device=device)
    behind[:33] = weight
    assert torch.equal(dense_gemm(x[real], behind[:33]), alone)


def test_rows_with_gaps_between_them_are_multiplied_as_dense_ones(device: torch.device) -> None:
    x = normal(5, 192, dtype=torch.float32, device=device)[:, 96:]
    weight = normal(33, 96, dtype=torch.float32, device=device, seed=1)
    assert torch.equal(dense_gemm(x, weight), dense_gemm(x.clone(), weight))


def test_an_empty_batch_is_an_empty_batch(device: torch.device) -> None:
    assert dense_gemm(torch.empty(0, 64, device=device), torch.ones(32, 64, device=device)).shape == (0, 32)


def test_the_tile_is_chosen_by_dtype_and_weight() -> None:
    assert dense_gemm_tile(WIDE_OUTPUT, torch.bfloat16) == TALL
    assert dense_gemm_tile(WIDE_OUTPUT - 1, torch.bfloat16).columns == 64
    assert dense_gemm_tile(WIDE_OUTPUT, torch.float32) == dense_gemm_tile(1, torch.float32)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    weight = torch.ones(8, 32, device=device)
    with pytest.raises(ValueError, match="does not fit weight"):
        dense_gemm(torch.ones(2, 16, device=device), weight)
    with pytest.raises(ValueError, match="does not fit weight"):
        dense_gemm(torch.ones(2, 32, device=device).half(), weight)
    with pytest.raises(ValueError, match="weight needs dense rows"):
        dense_gemm(torch.ones(2, 8, device=device), weight.T)
    with pytest.raises(ValueError, match=r"must be dense torch\.float32 of 8"):
        dense_gemm(torch.ones(2, 32, device=device), weight, torch.ones(9, device=device))
