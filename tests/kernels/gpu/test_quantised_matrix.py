"""Weights kept on a device: a file's bits are its values, floats are quantised in runs, products are of all parts."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.quantised_gemm import QuantisedWeight
from kernels.gpu.quantised_matrix import DeviceKernels, DeviceKind, DeviceMatrix

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
