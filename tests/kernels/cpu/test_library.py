"""The native library loads once, shares torch's threads, and is replaced, with a word, where it is missing."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from kernels import backends
from kernels.cpu import library
from kernels.cpu.backend import TorchBackend
from kernels.cpu.library import LibraryError, NativeLibrary, Variant, loaded_openmp_runtimes

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("variant", list(Variant), ids=lambda variant: variant.name)
@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_every_variant_matches_the_reference(native_variant, batch_of, variant, pages_dtype):
    batch = batch_of([(1, 270), (6, 40), (1, 5)], num_q_heads=7, head_dim=80, pages_dtype=pages_dtype)
    for options in ({}, {"window": 40}, {"softcap": 3.0}):
        actual = batch.attend(native_variant(variant), **options)
        assert (actual.double() - batch.expected(**options)).abs().max().item() < 3e-6


@pytest.mark.parametrize("variant", list(Variant), ids=lambda variant: variant.name)
@pytest.mark.parametrize("head_dim", [48, 64])
def test_every_variant_loses_only_roundings_to_bfloat16(native_variant, batch_of, variant, head_dim):
    batch = batch_of([(1, 270), (6, 40)], num_q_heads=3, head_dim=head_dim, dtype=torch.bfloat16)
    backend = native_variant(variant)
    expected, allowed = batch.rounded_expected(backend)
    error = (batch.attend(backend).double() - expected).abs()
    assert (error <= expected.abs() * 2**-8 * 1.01 + allowed + 3e-6).all()


def test_the_default_variant_is_the_best_this_machine_runs(native_variant):
    native_variant()
    best = NativeLibrary().variant
    for variant in Variant:
        if variant > best:
            with pytest.raises(LibraryError, match=variant.name):
                NativeLibrary(variant=variant)
        else:
            assert NativeLibrary(variant=variant).variant == variant


def test_one_openmp_runtime_serves_torch_and_the_library(native, batch_of):
    torch.randn(300, 300) @ torch.randn(300, 300)
    batch_of([(1, 3000)]).attend(native)
    assert len(loaded_openmp_runtimes()) == 1


def test_a_torch_that_hides_its_openmp_runtime_leaves_the_systems(native):
    """A stand-in for torch loads no OpenMP runtime at all, so that the library's first load fails on its symbols."""
    script = "import sys, types; sys.modules['torch'] = types.ModuleType('torch'); from kernels.cpu import library; "
    script += "library.NativeLibrary(); print(len(library.loaded_openmp_runtimes()))"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    if "finds no OpenMP runtime" in child.stderr:
        pytest.skip("this system has no libgomp.so.1 of its own")
    assert (child.stderr, child.stdout) == ("", "1\n")


def test_the_cpu_gets_the_native_backend_without_a_warning(native):
    backend, warnings = backends.choose_backend(torch.device("cpu"))
    assert backend.name == "cpu-native"
    assert warnings == []


def test_without_the_library_the_cpu_gets_torch_operations_and_one_line_about_it(monkeypatch, tmp_path):
    monkeypatch.setattr(NativeLibrary.__init__, "__defaults__", (tmp_path / "liboctavo_cpu.so", None))
    backend, warnings = backends.choose_backend(torch.device("cpu"))
    assert isinstance(backend, TorchBackend)
    assert len(warnings) == 1
    assert "was not built: install a C++17 compiler" in warnings[0]
    assert "slower" in warnings[0]
    assert "\n" not in warnings[0]


def test_a_file_that_is_no_library_is_named(tmp_path):
    broken = tmp_path / "liboctavo_cpu.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(LibraryError, match=r"liboctavo_cpu\.so does not load"):
        library.NativeLibrary(broken)


def test_a_library_of_other_sources_is_refused_before_it_reads_a_call_wrong(monkeypatch, native):
    class LongerCall(library.StoreCall):
        _fields_: ClassVar = [("more", ctypes.c_int64)]

    monkeypatch.setattr(library, "StoreCall", LongerCall)
    with pytest.raises(LibraryError, match="was built from other sources than these: reinstall octavo"):
        NativeLibrary()


def test_a_device_no_backend_serves_is_refused():
    with pytest.raises(ValueError, match="no attention backend for device meta"):
        backends.choose_backend(torch.device("meta"))
