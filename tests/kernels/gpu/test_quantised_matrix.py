"""Weights kept on a device: a file's bits are its values, floats are quantised in runs, products are of all parts."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.quantised_gemm import QuantisedWeight
from kernels.gpu.quantised_matrix import DeviceKernels, DeviceKind, DeviceMatrix
from kernels.mxfp4 import stored_codes

KERNELS = DeviceKernels(is_deterministic=False)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(kind: DeviceKind, rows: list[int], columns: int, device: torch.device) -> list[DeviceMatrix]:
    matrices = KERNELS.matrices([kind] * len(rows), rows, columns, device)
    assert matrices is not None
    return matrices


@pytest.mark.parametrize("kept_as", [DeviceKind.Q8_0, DeviceKind.Q4_0])
def test_rows_of_a_file_keep_their_exact_values(kept_as: DeviceKind, device: torch.device) -> None:
    gguf = pytest.importorskip("gguf", reason="a machine with a GPU need not have it")
    quantization = gguf.GGMLQuantizationType[kept_as.name]
    stored = gguf.quants.quantize(normal(37, 96).numpy(), quantization)
    [matrix] = made(kept_as, [37], 96, device)
    for start in (0, 16, 32):
        matrix.pack_stored(start, torch.from_numpy(stored[start : start + 16]))
    row_ids = torch.tensor([36, 0, 5, 36], device=device)
    expected = torch.from_numpy(gguf.quants.dequantize(stored, quantization))
    assert torch.equal(matrix.unpack(torch.arange(37, device=device)).cpu(), expected)
    assert torch.equal(matrix.unpack(row_ids).cpu(), expected[row_ids.cpu()])
    assert matrix.nbytes == stored.nbytes


@pytest.mark.parametrize(
    ("kept_as", "columns", "whole", "num_bytes"),
    [
        (DeviceKind.INT8, 100, QuantisedWeight.int8, 37 * (100 + 4)),
        (DeviceKind.INT4, 256, QuantisedWeight.int4, 37 * (128 + 8)),
        (DeviceKind.INT4, 192, lambda weight: QuantisedWeight.int4(weight, 64), 37 * (96 + 12)),
        (DeviceKind.INT4, 96, lambda weight: QuantisedWeight.int4(weight, 32), 37 * (48 + 12)),
    ],
)
def test_floats_that_come_in_runs_are_quantised_as_a_whole_would_be(
    kept_as: DeviceKind,
    columns: int,
    whole: type[QuantisedWeight],
    num_bytes: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernels.gpu.quantised_matrix._PACKED_AT_ONCE", 5 * columns)
    weight = normal(37, columns)
    [matrix] = made(kept_as, [37], columns, device)
    for start in (0, 16, 32):
        matrix.pack_floats(start, weight[start : start + 16].to(device))
    expected = whole(weight.to(device))  # there, since a GPU divides by a number as it multiplies by its inverse
    assert torch.equal(matrix.weight.codes, expected.codes)
    assert torch.equal(matrix.weight.scales, expected.scales)
    assert torch.equal(matrix.unpack(torch.arange(37, device=device)), expected.values())
    assert matrix.nbytes == num_bytes


@pytest.mark.parametrize(
    ("form", "group", "kept_as", "bytes_of_a_row"),
    [
        ("codes4", 256, DeviceKind.CODES4_128, 128 + 2 * 5),
        ("codes4", 128, DeviceKind.CODES4_128, 128 + 2 * 5),
        ("codes4", 64, DeviceKind.CODES4_64, 128 + 4 * 5),
        ("codes4", 32, DeviceKind.CODES4_32, 128 + 8 * 5),
        ("codes8", 256, DeviceKind.CODES8, 256 + 4),
        ("codes8", 128, DeviceKind.CODES8_32, 256 + 8 * 4),
    ],
)
def test_codes_of_a_checkpoint_keep_their_exact_values(
    form: str, group: int, kept_as: DeviceKind, bytes_of_a_row: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(group)
    low, high = (0, 16) if form == "codes4" else (-128, 128)
    codes = torch.randint(low, high, (37, 256), generator=generator)
    scales = normal(37, 256 // group).half().float()
    zeros = torch.randint(0, 17, scales.shape, generator=generator, dtype=torch.uint8) if form == "codes4" else None
    assert KERNELS.kind(form, 256, group) is kept_as
    [matrix] = made(kept_as, [37], 256, device)
    for start in (0, 16, 32):
        run = slice(start, start + 16)
        stored = codes[run].to(torch.uint8 if form == "codes4" else torch.int8)
        matrix.pack_codes(start, stored, scales[run], None if zeros is None else zeros[run])
    integers = codes - (0 if zeros is None else zeros.long().repeat_interleave(group, 1))
    expected = integers.float() * scales.repeat_interleave(group, 1)
    assert torch.equal(matrix.unpack(torch.arange(37, device=device)).cpu(), expected)
    assert matrix.nbytes == 37 * bytes_of_a_row
    x = normal(3, 256, seed=9)
    product = matrix.joined([]).multiply(x.to(device)).cpu().double()
    exact = x.double() @ expected.double().T
    assert (product - exact).abs().max().item() < 2e-6 * exact.abs().max().item()


def test_mxfp4_is_kept_in_whole_numbers_of_a_byte(device: torch.device) -> None:
    gguf = pytest.importorskip("gguf", reason="a machine with a GPU need not have it")
    rows = torch.randint(0, 256, (37, 8, 17), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    rows[..., 0] = rows[..., 0] % 32 + 110
    expected = torch.from_numpy(gguf.quants.dequantize(rows.flatten(1).numpy(), gguf.GGMLQuantizationType.MXFP4))
    kind = KERNELS.kind("MXFP4", 256, 32)
    assert kind is DeviceKind.CODES8_32
    stored, coded = made(kind, [37, 37], 256, device)
    for start in (0, 16, 32):
        run = rows[start : start + 16].flatten(1)
        stored.pack_stored(start, run)
        coded.pack_codes(start, *stored_codes(run))
    for matrix in (stored, coded):
        assert torch.equal(matrix.unpack(torch.arange(37, device=device)).cpu(), expected)


def test_codes_that_a_gpu_has_no_groups_for_are_not_kept() -> None:
    assert KERNELS.kind("codes4", 96, 48) is None
    assert KERNELS.kind("codes4", 192, 128) is None
    assert KERNELS.kind("codes8", 80, 40) is None
    assert KERNELS.kind("fp8", 256, 128) is None


def test_parts_of_a_product_are_multiplied_at_once(device: torch.device) -> None:
    matrices = made(DeviceKind.INT8, [24, 8, 16], 64, device)
    for seed, matrix in enumerate(matrices):
        matrix.pack_floats(0, normal(matrix.rows, 64, seed=seed))
    product = matrices[0].joined(matrices[1:])
    x = normal(3, 64, seed=9).to(device)
    values = torch.cat([matrix.unpack(torch.arange(matrix.rows, device=device)) for matrix in matrices])
    torch.testing.assert_close(product.multiply(x), x @ values.T, rtol=0, atol=2e-5)
    assert product.nbytes == sum(matrix.nbytes for matrix in matrices) == 48 * (64 + 4)


@pytest.mark.parametrize(
    ("form", "columns", "kept_as"),
    [
        ("int8", 100, DeviceKind.INT8),
        ("int4", 96, DeviceKind.INT4),
        ("int4", 100, None),
        ("Q8_0", 96, DeviceKind.Q8_0),
        ("Q4_0", 100, None),
        ("Q4_K", 256, None),
        ("F16", 256, None),
    ],
)
def test_what_can_be_kept(form: str, columns: int, kept_as: DeviceKind | None) -> None:
    assert KERNELS.kind(form, columns) is kept_as


def test_a_product_of_two_kinds_is_not_kept(device: torch.device) -> None:
    assert KERNELS.matrices([DeviceKind.Q8_0, DeviceKind.Q4_0], [16, 16], 64, device) is None


def test_the_mode_reaches_the_product(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    monkeypatch.setattr(
        "kernels.gpu.quantised_matrix.quantised_gemm",
        lambda x, weight, is_deterministic: modes.append(is_deterministic),
    )
    for is_deterministic in (True, False):
        kernels = DeviceKernels(is_deterministic=is_deterministic)
        [matrix] = kernels.matrices([DeviceKind.INT8], [16], 32, device) or ()
        matrix.joined([]).multiply(torch.ones(1, 32, device=device))
    assert modes == [True, False]
