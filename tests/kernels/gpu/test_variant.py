from __future__ import annotations

import importlib

import pytest
import torch

from kernels.gpu.decode import decode_kernel
from kernels.gpu.reduce import merge_parts_kernel
from kernels.gpu.variant import Variant

MODULES = ["store_kv", "decode", "reduce", "prefill", "cascade"]


@pytest.mark.parametrize("module", MODULES)
def test_every_variant_has_a_name_of_its_own_and_a_type_for_every_argument(module: str) -> None:
    variants = importlib.import_module(f"kernels.gpu.{module}").variants()
    assert len({variant.name for variant in variants}) == len(variants) > 0
    for variant in variants:
        assert list(variant.signature) == list(variant.kernel.arg_names)
        constants = {name for name, kind in variant.signature.items() if kind == "constexpr"}
        assert constants == variant.constexprs.keys()


@pytest.mark.parametrize("module", MODULES)
def test_variants_cover_every_head_dim(module: str) -> None:
    variants = importlib.import_module(f"kernels.gpu.{module}").variants()
    assert {variant.constexprs["HEAD_DIM"] for variant in variants} == {64, 80, 96, 128, 256}


def test_only_fp8_pages_need_fp8() -> None:
    needing = {
        variant.name for variant in importlib.import_module("kernels.gpu.decode").variants() if variant.needs_fp8
    }
    assert needing
    assert all("float8" in name for name in needing)


def test_an_argument_too_many_or_too_few_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"odd: no arguments \['mistake'\]; nothing given for \['HEADS', 'HEAD_DIM', .*'sinks_ptr'"
    ):
        Variant.of("odd", merge_parts_kernel, {"output_ptr": "*fp32", "mistake": "i32"}, {})


def test_a_pointer_left_out_is_a_constant_of_none() -> None:
    variant = next(variant for variant in importlib.import_module("kernels.gpu.decode").variants())
    assert variant.kernel is decode_kernel
    assert variant.signature["sinks_ptr"] == "constexpr"
    assert variant.constexprs["sinks_ptr"] is None
    assert variant.signature["parts_ptr"] == "*fp32"
    assert variant.signature["num_splits"] == "i32"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's kernels have no parameters")
def test_options_name_fusion_since_its_default_differs_between_versions() -> None:
    variant = importlib.import_module("kernels.gpu.reduce").variants()[0]
    assert variant.options == {"num_warps": 1, "num_stages": 3, "enable_fp_fusion": True}


@pytest.mark.parametrize("module", ["decode", "reduce", "prefill"])
def test_deterministic_variants_are_compiled_without_fusion_as_they_are_launched(module: str) -> None:
    variants = importlib.import_module(f"kernels.gpu.{module}").variants()
    fused = {variant.name: variant.options["enable_fp_fusion"] for variant in variants}
    assert fused == {name: "deterministic" not in name for name in fused}
    assert False in fused.values()


def test_amd_gets_four_warps_at_most_for_its_wide_warps() -> None:
    variants = {variant.num_warps: variant for variant in importlib.import_module("kernels.gpu.prefill").variants()}
    assert [variants[8].options_on(backend)["num_warps"] for backend in ("cuda", "hip")] == [8, 4]
    assert [variants[4].options_on(backend)["num_warps"] for backend in ("cuda", "hip")] == [4, 4]
