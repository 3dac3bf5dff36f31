from __future__ import annotations

import pytest
import torch

from kernels import reference_layers
from kernels.gpu import quantised_gemm as module
from kernels.gpu.moe_gemm import GemmTile
from kernels.gpu.quantised_gemm import INT4_GROUPS, QuantisedWeight, quantised_gemm, quantised_gemm_tile

SMALL = GemmTile(rows=16, columns=32, depth=32, num_warps=4, num_stages=2)
# Sums of about 128 products of numbers near 1, rounded to values near 32.
TOLERANCE = {torch.float32: 4e-5, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-3}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def on(device: torch.device, weight: QuantisedWeight) -> QuantisedWeight:
    return QuantisedWeight(weight.codes.to(device), weight.scales.to(device), weight.group)


def quantise(weight: torch.Tensor, group: int) -> QuantisedWeight:
    return QuantisedWeight.int4(weight, group) if group else QuantisedWeight.int8(weight)


def grouped_int8(weight: torch.Tensor) -> QuantisedWeight:
    """As Q8_0 of a file: groups of 32, scales of float16."""
    groups = weight.view(len(weight), -1, 32)
    scales = (groups.abs().amax(dim=2) / 127).half()
    codes = (groups / scales.float()[..., None]).round().clamp(-127, 127).to(torch.int8)
    return QuantisedWeight(codes.flatten(1), scales, 32)


FORMS = {
    "int8": QuantisedWeight.int8,
    "int8 in groups": grouped_int8,
    "int4": QuantisedWeight.int4,
    "int4 in groups of 32": lambda weight: QuantisedWeight.int4(weight, 32),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group", [0, *INT4_GROUPS])
@pytest.mark.parametrize(("num_rows", "out_features"), [(1, 40), (19, 33)])
def test_products_equal_those_of_the_dequantised_weight(
    num_rows: int, out_features: int, group: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = normal(num_rows, 128).to(dtype), quantise(normal(out_features, 128, seed=1), group)
    output = quantised_gemm(x.to(device), on(device, weight), tile=SMALL)
    assert (output.shape, output.dtype) == ((num_rows, out_features), dtype)
    expected = reference_layers.quantised_gemm(x, weight.integers(), weight.scales)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("group", [0, 128])
@pytest.mark.parametrize("num_rows", [1, 17, 65])
def test_the_tiles_a_gpu_gets_equal_the_reference(num_rows: int, group: int, device: torch.device) -> None:
    x, weight = normal(num_rows, 256).half(), quantise(normal(130, 256, seed=1), group)
    output = quantised_gemm(x.to(device), on(device, weight))
    expected = reference_layers.quantised_gemm(x, weight.integers(), weight.scales)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=2.0**-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 17, 65])
def test_int8_codes_in_groups_equal_the_reference(num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = normal(num_rows, 128).to(dtype), grouped_int8(normal(70, 128, seed=1))
    output = quantised_gemm(x.to(device), on(device, weight))
    expected = reference_layers.quantised_gemm(x, weight.integers(), weight.scales)
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=TOLERANCE[dtype])
    values = x.double() @ weight.values().double().T
    torch.testing.assert_close(output.cpu().double(), values, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_deterministic_a_row_has_the_same_bits_in_every_batch(
    form: str, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = normal(70, 128).to(dtype).to(device), on(device, FORMS[form](normal(40, 128, seed=1)))
    whole = quantised_gemm(x, weight, is_deterministic=True)
    for count in (1, 16, 17, 64, 69):
        assert torch.equal(quantised_gemm(x[:count], weight, is_deterministic=True), whole[:count])
        assert torch.equal(quantised_gemm(x[-count:], weight, is_deterministic=True), whole[-count:])


@pytest.mark.parametrize("form", FORMS)
def test_deterministic_the_tile_is_that_of_64_rows(
    form: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def tile(num_rows: int, *arguments: object, **settings: object) -> GemmTile:
        asked.append(num_rows)
        return quantised_gemm_tile(num_rows, *arguments, **settings)

    monkeypatch.setattr(module, "quantised_gemm_tile", tile)
    weight = on(device, FORMS[form](normal(32, 128, seed=1)))
    for count in (1, 70):
        quantised_gemm(normal(count, 128).to(device), weight, is_deterministic=True)
        quantised_gemm(normal(count, 128).to(device), weight)
    assert asked == [64, 1, 64, 70]


def test_int8_inputs_need_not_fill_the_last_tile(device: torch.device) -> None:
    codes = torch.full((33, 64), 127, dtype=torch.int8, device=device)
    x = torch.full((3, 64), float("nan"), device=device)
    codes[:, :45], x[:, :45] = 2, 1.0
    weight = QuantisedWeight(codes[:, :45], torch.full((33, 1), 0.5, device=device), 0)
    assert (quantised_gemm(x[:, :45], weight, tile=SMALL) == 45.0).all()


def test_int8_codes_are_nearest_and_fill_their_range() -> None:
    weight = QuantisedWeight.int8(torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]]))
    assert weight.codes.tolist() == [[64, -127, 32], [0, 0, 0]]  # 63.5 and 31.75
    assert weight.scales.tolist() == [[pytest.approx(2 / 127)], [0.0]]


@pytest.mark.parametrize("group", INT4_GROUPS)
def test_int4_codes_come_back_from_their_bytes(group: int) -> None:
    integers = torch.randint(-7, 8, (3, 2 * group), generator=torch.Generator().manual_seed(0))
    integers[:, ::group] = 7
    weight = QuantisedWeight.int4(integers.float(), group)
    assert (weight.codes.shape, weight.codes.dtype, weight.in_features) == ((3, group), torch.uint8, 2 * group)
    assert torch.equal(weight.integers(), integers.to(torch.int8))
    assert weight.scales.tolist() == [[1.0, 1.0]] * 3
    assert int(weight.codes[0, 1]) == (int(integers[0, 1]) + 8) + 16 * (int(integers[0, 1 + group // 2]) + 8)


def test_a_row_has_the_same_bits_in_every_batch_of_the_same_tile(device: torch.device) -> None:
    x, weight = normal(20, 128).to(device), on(device, QuantisedWeight.int4(normal(32, 128, seed=1)))
    assert torch.equal(quantised_gemm(x, weight, tile=SMALL)[19:], quantised_gemm(x[19:], weight, tile=SMALL))


@pytest.mark.parametrize("group", [0, 128])
def test_an_empty_batch_is_an_empty_batch(group: int, device: torch.device) -> None:
    weight = on(device, quantise(normal(32, 128), group))
    assert quantised_gemm(torch.empty(0, 128, device=device), weight).shape == (0, 32)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="do not divide 100 inputs"):
        QuantisedWeight.int4(torch.ones(2, 100), 32)
    with pytest.raises(ValueError, match="none of"):
        QuantisedWeight.int4(torch.ones(2, 128), 16)
    weight = on(device, QuantisedWeight.int8(torch.ones(2, 64)))
    with pytest.raises(ValueError, match="does not fit a weight of 64 inputs"):
        quantised_gemm(torch.ones(1, 32, device=device), weight)
    with pytest.raises(ValueError, match="dense last dimension"):
        quantised_gemm(torch.ones(64, 3, device=device).T, weight)
