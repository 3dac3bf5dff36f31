"""Which dtypes of pages a device has."""

from __future__ import annotations

import pytest
import torch

from kernels.backends import check_page_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu_of(monkeypatch: pytest.MonkeyPatch):
    def pretend(capability: tuple[int, int]) -> torch.device:
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        return GPU

    return pretend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_cpus_have_pages_of_every_dtype(dtype: torch.dtype) -> None:
    check_page_dtype(dtype, CPU)


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0)])
def test_gpus_with_fp8_have_pages_of_every_dtype(gpu_of, capability: tuple[int, int]) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn):
        check_page_dtype(dtype, gpu_of(capability))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6)])
def test_gpus_without_fp8_say_so_and_point_to_int8(gpu_of, capability: tuple[int, int]) -> None:
    device = gpu_of(capability)
    check_page_dtype(torch.int8, device)
    with pytest.raises(ValueError, match=r"Some GPU \(compute capability .*\) has no fp8.* use int8"):
        check_page_dtype(torch.float8_e4m3fn, device)


def test_amd_gpus_have_no_fp8_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    check_page_dtype(torch.int8, GPU)
    with pytest.raises(ValueError, match="not supported on AMD GPUs; use int8"):
        check_page_dtype(torch.float8_e4m3fn, GPU)
