"""The native product with bfloat16 weights: right to rounding, the same bits in any batch, the place of the largest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.composed import gated, normed
from kernels.cpu.dense_product import MOST_ROWS, DenseMatrix, NativeDense
from kernels.cpu.library import LibraryError, NativeLibrary, Variant
from kernels.cpu.quantised_matrix import TABLE_ROWS, Prologue


@pytest.fixture(scope="module", params=[Variant.AVX2, Variant.AVX512, Variant.AVX512_BF16], ids=lambda one: one.name)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    try:
        return NativeLibrary(variant=request.param)
    except LibraryError as error:
        pytest.skip(str(error))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_rounded(actual: torch.Tensor, exact: torch.Tensor) -> None:
    """Off by half a unit of bfloat16 in the last place, and a hair for float32 sums."""
    assert actual.dtype == torch.bfloat16
    assert ((actual.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-4).all()


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 5, 11, 17, MOST_ROWS, MOST_ROWS + 1, 200])
@pytest.mark.parametrize(("rows", "columns"), [(3, 32), (50, 96), (640, 256), (30, 672), (9, 1984)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_lose_only_the_rounding_of_the_output(library, rows, columns, num_rows, has_bias) -> None:
    weight, bias = drawn(rows, columns).bfloat16(), drawn(rows, seed=1).bfloat16() if has_bias else None
    x = drawn(num_rows, 2 * columns, seed=2).bfloat16()[:, columns:]  # rows with a gap between them
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert_rounded(DenseMatrix(library, weight, bias).multiply(x), exact)


@pytest.mark.parametrize("num_rows", [1, MOST_ROWS + 5])
def test_norms_and_gates_are_done_in_float32_on_the_way_in(library, num_rows) -> None:
    weight, norm_weight = drawn(48, 64).bfloat16(), drawn(64, seed=1)
    matrix = DenseMatrix(library, weight)
    x = drawn(num_rows, 128, seed=2).bfloat16()
    prepared = {
        Prologue.RMS_NORM: (x[:, :64], normed(x[:, :64].float(), norm_weight, 1e-6)),
        Prologue.SILU: (x, gated(x.float(), "silu")),
        Prologue.GELU_TANH: (x, gated(x.float(), "gelu_tanh")),
    }
    for prologue, (given, wanted) in prepared.items():
        norm = norm_weight if prologue is Prologue.RMS_NORM else None
        actual = matrix.multiply(given, prologue, norm, 1e-6)
        exact = F.linear(wanted.double(), weight.double())
        allowed = F.linear(wanted.double().abs(), weight.double().abs()) * 2**-8  # of rounding the prepared row
        assert ((actual.double() - exact).abs() <= exact.abs() * 2**-8 + allowed + 1e-4).all()


@pytest.mark.parametrize(("rows", "columns"), [(1000, 160), (70, 1312)])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(library, rows, columns) -> None:
    matrix = DenseMatrix(library, drawn(rows, columns).bfloat16())
    num_rows = MOST_ROWS if library.variant.has_bf16 else 300
    x = drawn(num_rows, columns, seed=1).bfloat16()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        whole = matrix.multiply(x)
        torch.set_num_threads(1)
        parts = [(0, 1), (5, 7), (9, 12), (0, 31), (3, 3 + 8), (0, 16), (0, 17), (60, 260), (num_rows - 1, num_rows)]
        for first, last in parts:
            assert torch.equal(matrix.multiply(x[first:last]), whole[first:last])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("scale", [1e-30, 0.02, 1e4])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 6])
def test_the_largest_output_is_that_of_the_whole_product(library, num_rows, scale) -> None:
    """Whatever the sieve, whose scales are halves, makes of weights: nearly all are told apart, none, or some."""
    table = (
        drawn(TABLE_ROWS + 5, 64) * torch.rand(TABLE_ROWS + 5, 1, generator=torch.Generator().manual_seed(4)) * scale
    )
    matrix = DenseMatrix(library, table.bfloat16())
    for seed in range(6):
        x = drawn(num_rows, 64, seed=seed).bfloat16()
        outputs = matrix.multiply(x)
        assert outputs.dtype == torch.float32
        assert torch.equal(matrix.argmax(x), outputs.argmax(dim=-1))


def test_of_equal_outputs_the_first_is_the_largest(library) -> None:
    table = torch.zeros(TABLE_ROWS, 32, dtype=torch.bfloat16)
    matrix_of_zeros = DenseMatrix(library, table.clone())
    ones = torch.ones(1, 32, dtype=torch.bfloat16)
    assert matrix_of_zeros.argmax(ones).tolist() == [0]
    table[[20_000, 777, 31_000]] = 0.25
    assert DenseMatrix(library, table).argmax(ones).tolist() == [777]


def test_the_last_row_of_a_table_that_ends_within_a_panel_can_be_the_largest(library) -> None:
    table = torch.full((TABLE_ROWS + 3, 32), -1.0, dtype=torch.bfloat16)
    table[-1] = -0.5
    ones = torch.ones(1, 32, dtype=torch.bfloat16)
    assert DenseMatrix(library, table).argmax(ones).tolist() == [TABLE_ROWS + 2]


@pytest.mark.parametrize("num_rows", [1, 6])
def test_an_infinite_weight_gives_the_largest_output_and_nan_is_none(library, num_rows) -> None:
    table = drawn(TABLE_ROWS, 64).bfloat16()
    table[5] = float("nan")
    x = drawn(num_rows, 64, seed=1).abs().bfloat16()
    x[:, 3] = 8.0
    without = DenseMatrix(library, table.clone()).multiply(x).nan_to_num(nan=-torch.inf).argmax(dim=-1)
    assert torch.equal(DenseMatrix(library, table).argmax(x), without)
    table[30_000, 3] = float("inf")
    assert DenseMatrix(library, table).argmax(x).tolist() == [30_000] * num_rows


def test_inputs_of_any_size_have_the_largest_output_of_the_whole_product(library) -> None:
    """Also where what 4 bits give is no float32 any more, though the output is."""
    table = torch.full((TABLE_ROWS, 32), -(2.0**-9), dtype=torch.bfloat16)
    table[20_000] = -(2.0**-10)
    x = torch.full((1, 32), 1e37, dtype=torch.bfloat16)
    assert DenseMatrix(library, table).argmax(x).tolist() == [20_000]


def test_other_weights_are_left_to_torch(library) -> None:
    dense = NativeDense(library)
    assert dense.matrix(torch.zeros(4, 64), None) is None
    assert dense.matrix(torch.zeros(4, 40, dtype=torch.bfloat16), None) is None
    assert NativeDense(NativeLibrary(variant=Variant.PORTABLE)).matrix(torch.zeros(4, 64).bfloat16(), None) is None
    x, weight = drawn(2, 8), drawn(3, 8, seed=1)
    assert torch.equal(dense(x, weight), F.linear(x, weight))


def test_inputs_that_do_not_fit_are_refused(library) -> None:
    matrix = DenseMatrix(library, torch.zeros(4, 64, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="does not fit 64 columns"):
        matrix.multiply(torch.zeros(1, 32, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="does not fit 64 columns"):
        matrix.multiply(torch.zeros(1, 64, dtype=torch.float16))
    with pytest.raises(ValueError, match="a norm weight goes with the prologue RMS_NORM"):
        matrix.multiply(torch.zeros(1, 64, dtype=torch.bfloat16), Prologue.RMS_NORM)
