"""Codes that checkpoints publish: weights and products to the last bit of their integers, whatever the scales."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from kernels.cpu.library import NativeLibrary, Variant
from kernels.cpu.quantised_matrix import NativeKernels, QuantisedMatrix, QuantisedProduct, WeightKind
from kernels.mxfp4 import stored_codes

FORMS = list(itertools.product(("codes4", "codes8", "fp8", "MXFP4"), (32, 128)))  # and columns that share a scale
TWICE_FLOATS = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)


@pytest.fixture
def best() -> NativeLibrary:
    return NativeLibrary()


class Published:
    """Random codes of ``form``, scales of a float type over many orders of magnitude, and zeros where it has them."""

    def __init__(
        self, form: str, rows: int, columns: int, group: int, scales: torch.dtype = torch.float16, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.form, self.group = form, group
        shape = (rows, columns // group)
        low, high = {"codes4": (0, 16), "codes8": (-128, 128), "fp8": (0, 256), "MXFP4": (0, 15)}[form]
        codes = torch.randint(low, high, (rows, columns), generator=generator)
        if form == "MXFP4":
            codes = torch.tensor(TWICE_FLOATS)[codes]
        if form == "fp8":
            codes[codes & 0x7F == 0x7F] = 0  # NaN
        self.codes = codes.to(torch.int8 if form in ("codes8", "MXFP4") else torch.uint8)
        signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        self.scales = (signs * torch.empty(shape).uniform_(-9, 0, generator=generator).exp()).to(scales).float()
        if form == "MXFP4":
            self.scales = torch.randint(-9, 1, shape, generator=generator).float().exp2()
        self.zeros = None
        if form == "codes4":
            self.zeros = torch.randint(0, 17, shape, generator=generator, dtype=torch.uint8)

    @property
    def weights(self) -> torch.Tensor:
        """As float32, each rounded once."""
        codes = self.codes.view(torch.float8_e4m3fn) if self.form == "fp8" else self.codes
        values = codes.float().unflatten(1, (-1, self.group))
        if self.zeros is not None:
            values = values - self.zeros.float()[..., None]
        return (values * self.scales[..., None]).flatten(1)

    def packed(self, library: NativeLibrary) -> QuantisedMatrix:
        rows, columns = self.codes.shape
        kernels = NativeKernels(library)
        kind = kernels.kind(self.form, columns, self.group)
        assert kind is not None
        (matrix,) = kernels.matrices([kind], [rows], columns, torch.device("cpu"))
        matrix.pack_codes(0, self.codes, self.scales, self.zeros)
        return matrix


def quantised_inputs(x: torch.Tensor) -> torch.Tensor:
    """``x`` as the products see it: int8 codes of 32 columns times their scale, in float64."""
    groups = x.double().unflatten(-1, (-1, 32))
    scales = (groups.abs().amax(-1, keepdim=True).float() / 127).double()
    codes = (groups.float() * (1 / scales.float())).round().double()
    return torch.where(scales > 0, codes * scales, 0.0).flatten(-2)


@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("form", "group"), [*FORMS, ("codes4", 64), ("codes4", 768), ("codes8", 384), ("fp8", 768)])
def test_every_weight_is_its_code_times_its_scale_to_the_bit(
    library: NativeLibrary, form: str, group: int, scales: torch.dtype
) -> None:
    published = Published(form, 33, 768, group, scales)
    assert torch.equal(published.packed(library).unpack(torch.arange(33)), published.weights)


@pytest.mark.parametrize(("form", "group"), FORMS)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 13])
def test_products_are_those_of_the_quantised_input(
    library: NativeLibrary, form: str, group: int, num_rows: int
) -> None:
    published = Published(form, 50, 768, group)
    product = QuantisedProduct([published.packed(library)])
    x = torch.randn(num_rows, 768, generator=torch.Generator().manual_seed(num_rows))
    x[0, :32] = 0.0  # a group without a scale
    expected = quantised_inputs(x) @ published.weights.double().T
    assert (product.multiply(x) - expected).abs().max().item() < 2e-6 * expected.abs().max().item()


def test_a_zero_far_from_the_codes_costs_no_digit(library: NativeLibrary) -> None:
    """All codes are 15 and so is zero: taken from sums of floats, what is left would be rounding."""
    published = Published("codes4", 16, 128, 128)
    published.codes.fill_(15)
    assert published.zeros is not None
    published.zeros.fill_(15)
    assert not QuantisedProduct([published.packed(library)]).multiply(torch.randn(3, 128)).any()


@pytest.mark.parametrize(("form", "group"), FORMS)
def test_c14_a_row_of_many_has_the_bits_it_has_alone(library: NativeLibrary, form: str, group: int) -> None:
    product = QuantisedProduct([Published(form, 33, 2304, group).packed(library)])
    x = torch.randn(221, 2304)
    together = product.multiply(x)
    for row in (0, 7, 8, 103, 104, 111, 112, 215, 216, 220):
        assert torch.equal(product.multiply(x[row : row + 1])[0], together[row])


def test_every_instruction_set_gives_the_same_product_of_floats_but_for_scales(best: NativeLibrary) -> None:
    """Products of codes are exact, so that fused and unfused sums are the same; a scale of 1 rounds nothing."""
    published, x = Published("fp8", 16, 32, 32), torch.randint(-127, 128, (9, 32)).float()
    published.scales.fill_(1.0)
    x[:, 0] = 127.0  # a scale of 1 of the input too
    results = [
        QuantisedProduct([published.packed(NativeLibrary(variant=variant))]).multiply(x)
        for variant in Variant
        if variant <= best.variant
    ]
    assert all(torch.equal(one, results[0]) for one in results[1:])


def test_every_power_of_two_that_mxfp4_has_is_kept_to_the_bit(library: NativeLibrary) -> None:
    """Subnormal numbers among them."""
    blocks = np.random.default_rng(0).integers(0, 256, (16, 256, 17), dtype=np.uint8)
    blocks[..., 0] = np.arange(256)
    rows = blocks.reshape(16, -1)
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(dequantize(rows, GGMLQuantizationType.MXFP4))
    assert expected.view(16, 256, 32)[:, 0].abs().max() == 12 * 2.0**-128
    stored, coded = (QuantisedMatrix(library, WeightKind.MXFP4, 16, 256 * 32) for _ in range(2))
    stored.pack_stored(0, torch.from_numpy(rows))
    coded.pack_codes(0, *stored_codes(torch.from_numpy(rows)))
    for matrix in (stored, coded):
        assert torch.equal(matrix.unpack(torch.arange(16)), expected)


def test_runs_of_whole_panels_fill_a_matrix_in_any_order(best: NativeLibrary) -> None:
    published = Published("codes4", 70, 256, 128)
    assert published.zeros is not None
    matrix = QuantisedMatrix(best, WeightKind.CODES4_WIDE, 70, 256)
    for first, last in ((48, 70), (0, 16), (16, 48)):
        run = slice(first, last)
        matrix.pack_codes(first, published.codes[run], published.scales[run], published.zeros[run], 2)
    assert torch.equal(matrix.unpack(torch.arange(70)), published.weights)


def test_codes_without_zeros_are_the_weights_by_themselves(best: NativeLibrary) -> None:
    published = Published("codes4", 20, 64, 32)
    published.zeros = None
    assert torch.equal(published.packed(best).unpack(torch.arange(20)), published.weights)


def test_wide_groups_take_fewer_bits(best: NativeLibrary) -> None:
    kernels = NativeKernels(best)
    bits = {}
    for form, columns, group in [
        ("codes4", 1024, 32),
        ("codes4", 1024, 64),
        ("codes4", 1024, 128),
        ("codes4", 1024, 1024),
        ("codes4", 192, 192),
        ("codes8", 1024, 32),
        ("codes8", 1024, 1024),
        ("fp8", 1024, 64),
        ("fp8", 1024, 128),
        ("MXFP4", 1024, 32),
    ]:
        kind = kernels.kind(form, columns, group)
        assert kind is not None
        bits[form, group] = QuantisedMatrix(best, kind, 64, columns).nbytes * 8 / (64 * columns)
    assert bits == {
        ("codes4", 32): 5.25,
        ("codes4", 64): 5.25,
        ("codes4", 128): 4.3125,
        ("codes4", 1024): 4.3125,
        ("codes4", 192): 4 + (6 * 5 * 16 + 32) * 8 / (16 * 192),  # scales of 480 bytes, padded to 512
        ("codes8", 32): 9.0,
        ("codes8", 1024): 8.25,
        ("fp8", 64): 9.0,
        ("fp8", 128): 8.25,
        ("MXFP4", 32): 4.25,
    }


def test_columns_that_groups_do_not_divide_are_not_kept(best: NativeLibrary) -> None:
    kernels = NativeKernels(best)
    assert kernels.kind("codes4", 80) is None
    assert kernels.kind("codes4", 192, 128) is None
    assert kernels.kind("codes8", 96, 48) is None


def test_what_the_kind_cannot_hold_is_refused(best: NativeLibrary) -> None:
    matrix = QuantisedMatrix(best, WeightKind.CODES4_WIDE, 16, 256)
    codes, scales, zeros = torch.ones(16, 256, dtype=torch.uint8), torch.ones(16, 2), torch.ones(16, 2).byte()
    matrix.pack_codes(0, codes, scales, zeros)
    with pytest.raises(ValueError, match=r"codes of 0 \.\. 15"):
        matrix.pack_codes(0, 16 * codes, scales, zeros)
    with pytest.raises(ValueError, match="no NaN"):
        QuantisedMatrix(best, WeightKind.FP8, 16, 256).pack_codes(0, 255 * codes, scales)
    floats = QuantisedMatrix(best, WeightKind.MXFP4, 16, 256)
    for code, scale in ((5, 1.0), (13, 1.0), (-7, 1.0), (1, 3.0), (1, -1.0), (1, 0.0), (1, 2.0**-129), (1, torch.inf)):
        with pytest.raises(ValueError, match="twice a 4-bit float each, and their scales powers of two"):
            floats.pack_codes(0, torch.full((16, 256), code, dtype=torch.int8), torch.full((16, 8), scale))
    with pytest.raises(ValueError, match="not those of 256 columns"):
        matrix.pack_codes(0, codes[:, :128].contiguous(), scales, zeros)
    with pytest.raises(ValueError, match=r"\[16, groups\]"):
        matrix.pack_codes(0, codes, scales, zeros[:, :1])
    with pytest.raises(ValueError, match="float32"):
        matrix.pack_codes(0, codes, scales.half(), zeros)
    with pytest.raises(ValueError, match="check their values"):  # finer than the kind's
        matrix.pack_codes(0, codes, scales.repeat(1, 2), zeros.repeat(1, 2))
    with pytest.raises(ValueError, match="check their values"):  # which has none
        QuantisedMatrix(best, WeightKind.CODES8, 16, 256).pack_codes(0, codes, scales, zeros)
    with pytest.raises(ValueError, match="check their values"):  # which has codes of ggml
        QuantisedMatrix(best, WeightKind.Q4_0, 16, 256).pack_codes(0, codes, scales)
