"""Weights of ggml in their own bits: what gguf says they are, products to the last bit, rows alone alike."""

from __future__ import annotations

import itertools

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from kernels.cpu.library import NativeLibrary, Variant
from kernels.cpu.quantised_matrix import NativeKernels, Prologue, QuantisedMatrix, QuantisedProduct, WeightKind

KINDS = [kind for kind in WeightKind if not kind.name.startswith(("CODES", "FP8"))]  # of ggml


@pytest.fixture
def best() -> NativeLibrary:
    return NativeLibrary()


def stored(kind: WeightKind, rows: int, columns: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random GGUF blocks of every code and sensible scales: as uint8 rows, and as the floats gguf makes of them."""
    quantization = GGMLQuantizationType["Q8_0" if kind is WeightKind.Q8_PLANES else kind.name]
    block, block_bytes = gguf.constants.GGML_QUANT_SIZES[quantization]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, columns // block, block_bytes), dtype=np.uint8)
    pairs = dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
    places = {**pairs, "Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "MXFP4": ()}.get(kind.name, (0,))
    for place in places:
        scales = random.uniform(0.01, 0.1, (rows, columns // block)).astype(np.float16)
        blocks[:, :, place : place + 2] = scales[..., None].view(np.uint8)
    if kind is WeightKind.MXFP4:
        blocks[:, :, 0] = random.integers(120, 126, blocks.shape[:2])
    data = blocks.reshape(rows, -1)
    return torch.from_numpy(data), torch.from_numpy(gguf.quants.dequantize(data, quantization))


def packed(library: NativeLibrary, kind: WeightKind, rows: int, columns: int, seed: int = 0) -> QuantisedMatrix:
    matrix = QuantisedMatrix(library, kind, rows, columns)
    matrix.pack_stored(0, stored(kind, rows, columns, seed)[0])
    return matrix


def quantised_inputs(x: torch.Tensor) -> torch.Tensor:
    """``x`` as the products see it: int8 codes of 32 columns times their scale, in float64."""
    groups = x.double().unflatten(-1, (-1, 32))
    scales = (groups.abs().amax(-1, keepdim=True).float() / 127).double()
    codes = (groups.float() * (1 / scales.float())).round().double()
    return torch.where(scales > 0, codes * scales, 0.0).flatten(-2)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [16, 33])
def test_every_weight_is_the_one_that_gguf_reads(library: NativeLibrary, kind: WeightKind, rows: int) -> None:
    matrix = packed(library, kind, rows, 512)
    expected = stored(kind, rows, 512)[1]
    ids = torch.tensor([rows - 1, 0, 5, 5, *range(rows)])
    assert (matrix.unpack(ids) - expected[ids]).abs().max().item() <= 1e-6 * expected.abs().max().item()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 13])
def test_products_are_those_of_the_quantised_input(library: NativeLibrary, kind: WeightKind, num_rows: int) -> None:
    product = QuantisedProduct([packed(library, kind, 50, 768)])
    x = torch.randn(num_rows, 768, generator=torch.Generator().manual_seed(num_rows))
    x[0, :32] = 0.0  # a group without a scale
    expected = quantised_inputs(x) @ stored(kind, 50, 768)[1].double().T
    assert (product.multiply(x) - expected).abs().max().item() < 2e-6 * expected.abs().max().item()


def test_a_product_of_several_kinds_lays_their_rows_one_after_the_other(library: NativeLibrary) -> None:
    rows = [16, 40, 7, 33, 20, 41, 1, 15, 17, 32, 31, 18, 48, 19]
    matrices = [packed(library, kind, count, 256, seed=count) for kind, count in zip(KINDS, rows, strict=True)]
    x = torch.randn(3, 256)
    together = QuantisedProduct(matrices).multiply(x)
    assert together.shape == (3, sum(rows))
    assert torch.equal(together, torch.cat([QuantisedProduct([one]).multiply(x) for one in matrices], dim=1))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_c14_a_row_has_the_same_bits_alone_in_any_batch_and_on_any_threads(
    best: NativeLibrary, kind: WeightKind
) -> None:
    product = QuantisedProduct([packed(best, kind, 1040, 512)])
    x = torch.randn(29, 512)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([product.multiply(row[None]) for row in x])
        for count, batch in itertools.product((1, 2, 3), (29, 16, 5)):
            torch.set_num_threads(count)
            parts = [product.multiply(part) for part in x.split(batch)]
            assert torch.equal(torch.cat(parts), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_c14_a_row_of_many_wide_ones_has_the_bits_it_has_alone(library: NativeLibrary, kind: WeightKind) -> None:
    """So many and so wide that rows are multiplied in blocks, and groups in runs."""
    product = QuantisedProduct([packed(library, kind, 33, 2304)])
    x = torch.randn(221, 2304)
    together = product.multiply(x)
    for row in (0, 7, 8, 103, 104, 111, 112, 215, 216, 220):
        assert torch.equal(product.multiply(x[row : row + 1])[0], together[row])


def test_every_instruction_set_agrees_but_for_fused_rounding(best: NativeLibrary) -> None:
    x = torch.randn(5, 512)
    for kind in KINDS:
        results = []
        for variant in Variant:
            if variant <= best.variant:
                results.append(QuantisedProduct([packed(NativeLibrary(variant=variant), kind, 48, 512)]).multiply(x))
        for one in results[1:]:
            assert (one - results[0]).abs().max().item() < 1e-5 * results[0].abs().max().item()


def test_a_norm_before_a_product_is_the_norm_of_the_row(library: NativeLibrary) -> None:
    product = QuantisedProduct([packed(library, WeightKind.Q8_0, 48, 320)])
    x, weight = 5 * torch.randn(6, 320), torch.rand(320) + 0.5
    normed = torch.nn.functional.rms_norm(x, (320,), weight, 1e-6)
    expected = product.multiply(normed)
    actual = product.multiply(x, Prologue.RMS_NORM, weight, 1e-6)
    # a last place of the norm can move a code by one
    assert (actual - expected).abs().max().item() < 2e-3 * expected.abs().max().item()


@pytest.mark.parametrize(("prologue", "activation"), [(Prologue.SILU, "silu"), (Prologue.GELU_TANH, "gelu")])
def test_a_gated_input_is_the_activated_half_times_the_other(
    library: NativeLibrary, prologue: Prologue, activation: str
) -> None:
    product = QuantisedProduct([packed(library, WeightKind.Q8_0, 48, 320)])
    x = torch.randn(4, 640) * 3
    x[0, :4] = torch.tensor([200.0, -200.0, 90.0, -90.0])
    gate, up = x.chunk(2, dim=-1)
    activated = (
        torch.nn.functional.silu(gate) if activation == "silu" else torch.nn.functional.gelu(gate, approximate="tanh")
    )
    expected = product.multiply((activated * up).contiguous())
    assert (product.multiply(x, prologue) - expected).abs().max().item() < 2e-3 * expected.abs().max().item()


@pytest.mark.parametrize("prologue", [Prologue.SILU, Prologue.GELU_TANH])
def test_gates_far_below_zero_close_and_infinite_ones_show(library: NativeLibrary, prologue: Prologue) -> None:
    product = QuantisedProduct([packed(library, WeightKind.Q8_0, 16, 32)])
    gates = torch.tensor([-1e2, -1e30, -3e38, float("-inf"), float("inf"), float("nan")])
    output = product.multiply(torch.cat([gates[:, None].expand(6, 32), torch.ones(6, 32)], dim=-1), prologue)
    assert torch.equal(output[:3], torch.zeros(3, 16))
    assert output[3:].isnan().all()


@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_the_largest_output_is_found_without_storing_any(library: NativeLibrary, num_rows: int) -> None:
    matrices = [
        packed(library, kind, rows, 256, seed=rows) for kind, rows in ((WeightKind.Q8_0, 5000), (WeightKind.Q5_0, 77))
    ]
    product = QuantisedProduct(matrices)
    x, weight = torch.randn(num_rows, 256), torch.rand(256)
    assert torch.equal(product.argmax(x), product.multiply(x).argmax(-1))
    normed = (Prologue.RMS_NORM, weight, 1e-6)
    assert torch.equal(product.argmax(x, *normed), product.multiply(x, *normed).argmax(-1))


@pytest.mark.parametrize("kind", [WeightKind.Q8_0, WeightKind.Q8_PLANES], ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_rows", [1, 20])
def test_of_equal_outputs_the_first_is_the_largest(best: NativeLibrary, kind: WeightKind, num_rows: int) -> None:
    data = stored(kind, 16, 64)[0].repeat(400, 1)
    matrix = QuantisedMatrix(best, kind, 6400, 64)
    matrix.pack_stored(0, data)
    assert (QuantisedProduct([matrix]).argmax(torch.randn(num_rows, 64)) < 16).all()


def test_tables_of_a_vocabulary_are_laid_out_for_their_largest_output(best: NativeLibrary) -> None:
    matrices = NativeKernels(best).matrices([WeightKind.Q8_0] * 2, [50_000, 1_000], 32, torch.device("cpu"))
    assert [matrix.kind for matrix in matrices] == [WeightKind.Q8_PLANES, WeightKind.Q8_0]


@pytest.mark.parametrize("num_rows", [1, 2, 4, 5])
def test_the_largest_output_of_planes_is_that_of_the_whole_product(library: NativeLibrary, num_rows: int) -> None:
    product = QuantisedProduct([packed(library, WeightKind.Q8_PLANES, 3001, 96, seed=num_rows)])
    generator = torch.Generator().manual_seed(num_rows)
    for spread in (0.0, 1.0, 3.0):  # of the sizes of inputs: from even to a few that outweigh all others
        x = torch.randn(num_rows, 96, generator=generator)
        x *= (spread * torch.randn(num_rows, 96, generator=generator)).exp()
        assert torch.equal(product.argmax(x), product.multiply(x).argmax(-1))


def test_lower_nibbles_alone_decide_where_upper_ones_are_alike(library: NativeLibrary) -> None:
    codes = torch.randint(-8, 8, (1, 64), generator=torch.Generator().manual_seed(0)).repeat(5000, 1) * 16
    lower = torch.randint(0, 16, (5000, 64), generator=torch.Generator().manual_seed(1))
    blocks = torch.zeros(5000, 2, 34, dtype=torch.uint8)
    blocks[..., :2] = torch.tensor([0.01], dtype=torch.float16).view(torch.uint8)
    blocks[..., 2:] = (codes + lower).to(torch.int8).view(torch.uint8).view(5000, 2, 32)
    matrix = QuantisedMatrix(library, WeightKind.Q8_PLANES, 5000, 64)
    matrix.pack_stored(0, blocks.view(5000, 68))
    product = QuantisedProduct([matrix])
    for seed in range(20):
        x = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))
        assert product.argmax(x).item() == product.multiply(x).argmax(-1).item()


@pytest.mark.parametrize("num_rows", [1, 4])
def test_the_largest_output_of_planes_is_found_where_scales_are_negative(library: NativeLibrary, num_rows: int) -> None:
    blocks = stored(WeightKind.Q8_PLANES, 3001, 96)[0].view(3001, 3, 34)
    blocks[::2, :, 1] |= 0x80
    blocks[1::4, 1, 1] |= 0x80
    matrix = QuantisedMatrix(library, WeightKind.Q8_PLANES, 3001, 96)
    matrix.pack_stored(0, blocks.view(3001, 102))
    product = QuantisedProduct([matrix])
    for seed in range(20):
        x = torch.randn(num_rows, 96, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(product.argmax(x), product.multiply(x).argmax(-1))


def test_the_largest_output_of_planes_is_found_where_sums_before_their_scale_overflow(library: NativeLibrary) -> None:
    blocks = torch.zeros(32, 34, dtype=torch.uint8)
    blocks[:, :2] = torch.tensor([0.01], dtype=torch.float16).view(torch.uint8)
    blocks[:, 2:] = torch.tensor([-128] * 16 + [-120] * 16).to(torch.int8).view(torch.uint8)[:, None]
    matrix = QuantisedMatrix(library, WeightKind.Q8_PLANES, 32, 32)
    matrix.pack_stored(0, blocks)
    product, x = QuantisedProduct([matrix]), torch.full((1, 32), 1.27e35)
    assert product.multiply(x).isfinite().all()
    assert product.argmax(x).item() == 16


@pytest.mark.parametrize("kind", [WeightKind.Q8_0, WeightKind.Q8_PLANES], ids=lambda kind: kind.name)
def test_an_output_that_is_no_number_is_never_the_largest(library: NativeLibrary, kind: WeightKind) -> None:
    blocks = stored(kind, 640, 96)[0].view(640, 3, 34)
    blocks[::16, 1, :2] = torch.tensor([torch.nan], dtype=torch.float16).view(torch.uint8)
    matrix = QuantisedMatrix(library, kind, 640, 96)
    matrix.pack_stored(0, blocks.view(640, 102))
    product = QuantisedProduct([matrix])
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(0))
    outputs = product.multiply(x)
    assert outputs.isnan().sum() == 80
    assert torch.equal(product.argmax(x), outputs.nan_to_num(nan=-torch.inf).argmax(-1))


def test_inputs_may_be_bfloat16_and_strided(best: NativeLibrary) -> None:
    product = QuantisedProduct([packed(best, WeightKind.Q5_0, 32, 256)])
    wide = torch.randn(4, 600).bfloat16()
    assert torch.equal(product.multiply(wide[:, 40:296]), product.multiply(wide[:, 40:296].float().contiguous()))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_shows_in_every_output_of_its_row_and_no_other(
    library: NativeLibrary, poison: float
) -> None:
    product = QuantisedProduct([packed(library, WeightKind.Q4_0, 32, 256)])
    x = torch.randn(9, 256)
    clean = product.multiply(x)
    x[4, 100] = poison
    poisoned = product.multiply(x)
    assert poisoned[4].isnan().all()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(poisoned[others], clean[others])


@pytest.mark.parametrize("kind", [WeightKind.Q8_0, WeightKind.Q8_PLANES])
def test_floats_are_quantised_to_half_a_step_of_their_group(library: NativeLibrary, kind: WeightKind) -> None:
    weights = torch.randn(21, 96, generator=torch.Generator().manual_seed(8))
    weights[3, 32:64] = 0.0
    matrix = QuantisedMatrix(library, kind, 21, 96)
    matrix.pack_floats(0, weights)
    error = (matrix.unpack(torch.arange(21)) - weights).unflatten(1, (3, 32)).abs()
    step = weights.unflatten(1, (3, 32)).abs().amax(-1, keepdim=True) / 127
    assert (error <= step * 0.57 + 1e-7).all()  # scales are rounded to halves
    assert error[3, 1].max() == 0.0


def squared_error_of_four_bits(library: NativeLibrary, groups: torch.Tensor) -> torch.Tensor:
    """Of float32 ``groups`` [num_groups, 32], each quantised by itself."""
    matrix = QuantisedMatrix(library, WeightKind.Q4_1, *groups.shape)
    matrix.pack_floats(0, groups)
    return (matrix.unpack(torch.arange(len(groups))) - groups).square().sum(-1)


def test_four_bits_fit_every_group_better_than_its_range_cut_evenly(library: NativeLibrary) -> None:
    random = torch.Generator().manual_seed(4)
    groups = torch.randn(3000, 32, generator=random) + torch.rand(3000, 1, generator=random)
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (most - least) / 15
    even = (((groups - least) / step).round() * step + least - groups).square().sum(-1)
    ours = squared_error_of_four_bits(library, groups)
    assert (ours <= even * 1.01).all()  # scale and minimum are rounded to halves
    assert 0.80 < ours.sum() / even.sum() < 0.90


def test_four_bits_of_special_groups_are_exact(library: NativeLibrary) -> None:
    groups = torch.zeros(6, 32)
    groups[1] = 0.375
    groups[2] = -2.5
    groups[3, 7] = 1.875  # two values: the least and the most
    groups[4] = torch.arange(32) % 16 * 0.25 - 1.0  # as many as there are codes
    groups[5] = 1e-7  # below the least half with all its digits: to a part in four
    errors = squared_error_of_four_bits(library, groups)
    assert errors[:5].tolist() == [0.0] * 5
    assert errors[5] < 32 * 1e-7**2


def test_runs_of_whole_panels_fill_a_matrix_in_any_order(best: NativeLibrary) -> None:
    data, expected = stored(WeightKind.Q4_K, 70, 256)
    matrix = QuantisedMatrix(best, WeightKind.Q4_K, 70, 256)
    for first, last in ((48, 70), (0, 16), (16, 48)):
        matrix.pack_stored(first, data[first:last].contiguous())
    assert torch.allclose(matrix.unpack(torch.arange(70)), expected, atol=1e-6)
    for first, last in ((8, 24), (0, 20), (64, 80)):
        with pytest.raises(ValueError, match="whole panels"):
            matrix.pack_stored(first, torch.zeros(last - first, data.shape[1], dtype=torch.uint8))


def test_bad_sizes_are_refused(best: NativeLibrary) -> None:
    with pytest.raises(ValueError, match="Q4_K weights cannot have 320 columns"):
        QuantisedMatrix(best, WeightKind.Q4_K, 16, 320)
    with pytest.raises(ValueError, match="cannot have 40 columns"):
        QuantisedMatrix(best, WeightKind.Q8_0, 16, 40)
    product = QuantisedProduct([QuantisedMatrix(best, WeightKind.Q8_0, 16, 64)])
    with pytest.raises(ValueError, match="does not fit 64 columns"):
        product.multiply(torch.zeros(2, 65))
    with pytest.raises(ValueError, match="norm weight"):
        product.multiply(torch.zeros(2, 64), Prologue.RMS_NORM)
    with pytest.raises(ValueError, match="check their values"):
        product.matrices[0].unpack(torch.tensor([16]))
    with pytest.raises(ValueError, match="one number of columns"):
        QuantisedProduct([product.matrices[0], QuantisedMatrix(best, WeightKind.Q8_0, 16, 32)])


def test_memory_is_that_of_the_file(best: NativeLibrary) -> None:
    """Kinds with outer scales keep these in float32: a quarter of a bit more at most."""
    bits = {kind: QuantisedMatrix(best, kind, 1024, 2048).nbytes * 8 / (1024 * 2048) for kind in KINDS}
    assert bits == {
        WeightKind.Q8_0: 8.5,
        WeightKind.Q8_PLANES: 8.5,
        WeightKind.Q5_0: 5.5,
        WeightKind.Q4_0: 4.5,
        WeightKind.Q4_K: 4.75,
        WeightKind.Q6_K: 6.625,
        WeightKind.Q4_1: 5.0,
        WeightKind.Q5_1: 6.0,
        WeightKind.Q5_K: 5.75,
        WeightKind.IQ4_NL: 4.5,
        WeightKind.IQ4_XS: 4.375,
        WeightKind.Q3_K: 3.625,
        WeightKind.Q2_K: 2.75,
        WeightKind.MXFP4: 4.25,
    }
