"""The kernels compile for GPUs that are not here; in a process of their own, since others interpret them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chip import CHIPS, KIB
from benchmarks.compiled import (
    Compiled,
    amdgcn_load_bytes,
    amdgcn_resources,
    narrow_product_rows,
    ptx_async_bytes,
    ptx_load_bytes,
    ptx_matrix,
)
from benchmarks.kernels import Outcome, Task, complaints, every_pair, main, table

ROOT = Path(__file__).parents[2]
GOOD = Compiled(
    module="decode",
    variant="128 plain",
    chip="sm_90",
    registers=114,
    spilled=0,
    shared=24 * KIB,
    occupancy=0.25,
    matrix="mma",
    product_rows=16,
    load_bytes=16,
    async_bytes=16,
)


def compile_kernels(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.kernels", "--compile-only", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


OF_EVERY_KIND = "sum 4096 bf|halves 128/128 bf|silu bf|summarise 262144 bf|16x64x128 5760x2880 bf|128_gemm 16x32x128 bf"
KINDS = ("norms", "rotary", "activations", "sampling", "moe_gemm", "quantised_gemm")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What kernels of every kind and those of `SAMPLE` cost, in one run: to start it takes longer than most of them."""
    report = tmp_path_factory.mktemp("sampled") / "report.jsonl"
    variants = f"{OF_EVERY_KIND}|^({'|'.join(map(re.escape, SAMPLE))})$"
    run = compile_kernels("--variants", variants, "--json", str(report))
    assert run.returncode == 0, run.stderr
    costs = [json.loads(line) for line in report.read_text().splitlines()]
    assert run.stdout.startswith(f"{len(costs)} kernels, Triton ")
    return costs


def test_kernels_of_every_kind_compile_for_every_chip(sampled: list[dict[str, Any]]) -> None:
    costs = [cost for cost in sampled if cost["module"] in KINDS]
    assert len(costs) == len(KINDS) * len(CHIPS)
    products = [cost for cost in costs if cost["module"] in ("moe_gemm", "quantised_gemm")]
    assert {(cost["chip"], cost["matrix"]) for cost in products} == {
        ("sm_80", "mma"), ("sm_90", "mma"), ("gfx942", "mfma")
    }  # fmt: skip
    assert {cost["spilled"] for cost in costs} == {0}
    assert {cost["load_bytes"] for cost in costs} == {16}


SAMPLE = [
    f"{kernel}:{variant}"
    for kernel in ("decode", "prefill")
    for variant in (
        "128:g4:bfloat16/bfloat16:plain@sm_80",
        "256:g4:bfloat16/bfloat16:window@sm_80",
        "128:g8:bfloat16/bfloat16:deterministic@sm_80",
        "64:g1:float16/int8:window+sinks@sm_80",
        "256:g2:bfloat16/int8:window+softcap@sm_80",
        "64:g8:bfloat16/bfloat16:plain@sm_90",
        "128:g8:bfloat16/bfloat16:window+softcap+sinks@sm_90",
        "256:g4:bfloat16/bfloat16:window@sm_90",
        "256:g4:bfloat16/bfloat16:deterministic@sm_90",
        "256:g2:bfloat16/int8:window+softcap@sm_90",
        "128:g4:bfloat16/int8:softcap+deterministic@sm_90",
        "128:g8:bfloat16/float8_e4m3fn:plain@sm_90",
    )
] + [
    "store_kv:128:bfloat16/int8:rotary@sm_80",
    "store_kv:256:bfloat16/bfloat16:norm+rotary@sm_80",
    "store_kv:256:bfloat16/float8_e4m3fn:norm+rotary@sm_90",
    "store_kv:128:bfloat16/bfloat16:plain@sm_90",
    "store_kv:128:bfloat16/bfloat16:norm+rotary64@sm_90",
    "decode:128:g4:float32/int8:plain@sm_80",
    "decode:128:g4:float32/float32:window@sm_80",
    "prefill:128:g4:float32/float32:window@sm_90",
    "reduce:128:g4:bfloat16/bfloat16:plain:prefix@sm_80",
    "cascade:128:g4:bfloat16/bfloat16:plain@sm_80",
    "cascade:256:g4:bfloat16/bfloat16:plain@sm_80",
    "cascade:256:g4:bfloat16/bfloat16:plain@gfx942",
    "decode:128:g4:bfloat16/float32:plain@gfx942",
    "decode:256:g8:bfloat16/float32:plain@sm_80",
    "cascade:128:g8:bfloat16/float8_e4m3fn:plain@sm_90",
    "decode:128:g8:bfloat16/bfloat16:window+softcap+sinks@gfx942",
    "prefill:128:g4:bfloat16/bfloat16:plain@gfx942",
    "prefill:64:g1:float16/int8:window+sinks@gfx942",
]


def test_attention_and_stores_spill_nothing_and_multiply_on_the_best_unit_of_each_chip(
    sampled: list[dict[str, Any]],
) -> None:
    costs = [cost for cost in sampled if cost["module"] not in KINDS]
    assert sorted(f"{cost['variant']}@{cost['chip']}" for cost in costs) == sorted(SAMPLE)
    assert {cost["spilled"] for cost in costs} == {0}
    multiplied = [cost for cost in costs if cost["product_rows"]]
    assert {(cost["chip"], cost["product_rows"] >= 64, cost["matrix"]) for cost in multiplied} == {
        ("sm_80", False, "mma"), ("sm_80", True, "mma"), ("sm_90", False, "mma"), ("sm_90", True, "wgmma"),
        ("gfx942", False, "mfma"), ("gfx942", True, "mfma"),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_variant_that_can_be_launched_compiles_fits_and_is_written_down(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    run = compile_kernels("--pairs", "--json", str(report))

    assert run.returncode == 0, run.stderr
    names = {json.loads(line)["variant"] for line in report.read_text().splitlines()}
    documented = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert sorted(name for name in names if f"| {name} |" not in documented) == []


def test_pairs_are_every_variant_for_a_chip_and_every_choice_for_every_chip() -> None:
    names = [
        f"{kernel}:{dim}:{types}" for kernel in ("decode", "reduce") for dim in (64, 128) for types in ("a/a", "a/b")
    ]
    listed = [Task(name.partition(":")[0], name, chip) for name in names for chip in CHIPS]
    chosen = every_pair(listed)
    assert set(chosen) < set(listed)
    assert len(chosen) == len(set(chosen))
    assert {task.variant for task in chosen} == set(names)
    for task in listed:
        for part in task.variant.replace("/", ":").split(":"):
            assert any(
                part in one.variant.replace("/", ":").split(":") and one.module == task.module and one.chip == task.chip
                for one in chosen
            ), (part, task.chip)


@pytest.mark.parametrize(
    ("chip", "registers", "shared", "num_warps", "occupancy"),
    [
        ("sm_90", 32, 0, 4, 1.0),
        ("sm_90", 64, 0, 4, 0.5),  # 65,536 / (64 x 32) = 32 of 64 warps
        ("sm_90", 65, 0, 4, 7 / 16),  # rounded up to 72: 28 warps
        ("sm_90", 255, 0, 8, 0.125),
        ("sm_90", 32, 48 * KIB, 4, 0.25),  # 228 / (48 + 1) = 4 programs
        ("sm_80", 32, 48 * KIB, 4, 3 / 16),  # 164 / 49 = 3
        ("sm_80", 32, 164 * KIB, 4, 0.0),
        ("sm_90", 32, 0, 1, 0.5),  # at most 32 programs
        ("gfx942", 64, 0, 4, 1.0),
        ("gfx942", 97, 0, 4, 0.5),  # rounded up to 104: 4 of 8 waves
        ("gfx942", 64, 33 * KIB, 4, 0.125),
    ],
)
def test_occupancy_is_what_registers_shared_memory_and_programs_allow(
    chip: str, registers: int, shared: int, num_warps: int, occupancy: float
) -> None:
    assert CHIPS[chip].occupancy(registers=registers, shared=shared, num_warps=num_warps) == occupancy


@pytest.mark.parametrize(
    ("change", "head_dim", "complaint"),
    [
        ({}, 128, []),
        ({"spilled": 8}, 128, ["spills 8 bytes"]),
        ({"spilled": 8}, 256, []),
        ({"spilled": 8, "module": "prefill"}, 128, []),
        ({"shared": 228 * KIB}, 128, ["233472 bytes of shared memory, of 232448"]),
        ({"product_rows": 64}, 128, ["multiplies 64 rows without wgmma"]),
        ({"product_rows": 64, "matrix": "wgmma"}, 128, []),
        ({"async_bytes": 4}, 128, ["copies 4 bytes of pages at once while it multiplies"]),
        ({"async_bytes": 0, "product_rows": 0}, 128, []),
        ({"async_bytes": 0, "module": "norms"}, 128, []),
        ({"occupancy": 0.0}, 128, ["does not fit into a multiprocessor"]),
        ({"matrix": ""}, 128, ["multiplies without matrix instructions"]),
        ({"matrix": "", "product_rows": 0}, 128, []),
        ({"load_bytes": 8}, 128, ["loads at most 8 bytes at once"]),
    ],
)
def test_what_must_not_be_is_complained_about(change: dict[str, Any], head_dim: int, complaint: list[str]) -> None:
    assert list(complaints(replace(GOOD, **change), CHIPS["sm_90"], head_dim)) == complaint


def test_code_for_sm_80_must_fit_the_smaller_cards_that_run_it() -> None:
    large = replace(GOOD, chip="sm_80", shared=100 * KIB, occupancy=0.1)
    assert list(complaints(large, CHIPS["sm_80"], 128)) == [
        "102400 bytes of shared memory, of 101376 that the smallest card has"
    ]


def test_the_widest_load_and_the_matrix_instruction_are_found_in_ptx() -> None:
    assert ptx_load_bytes("ld.global.b16 { %rs1 }, [ %rd1 + 0 ];") == 2
    assert ptx_load_bytes("@%p1 ld.global.L1::evict_last.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];") == 16
    assert ptx_load_bytes("ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ]; ld.global.b64 %rd1, [ %rd2 ];") == 8
    assert ptx_load_bytes("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;") == 16
    assert ptx_load_bytes("cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;") == 4
    assert ptx_load_bytes("ld.shared.v4.b32 { %r1, %r2, %r3, %r4 }, [ %r5 ];") == 0
    assert ptx_async_bytes("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2; ld.global.b64") == 16
    assert ptx_async_bytes("ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];") == 0
    assert ptx_matrix("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16") == "wgmma"
    assert ptx_matrix("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == "mma"
    assert ptx_matrix("fma.rn.f32") == ""


def test_loads_and_registers_are_found_in_amd_assembly() -> None:
    assert amdgcn_load_bytes("global_load_dwordx4 v[2:5], v[0:1], off\nglobal_load_dword v1, v[0:1], off") == 16
    assert amdgcn_load_bytes("buffer_load_dwordx2 v[2:3], v1, s[0:3], 0 offen") == 8
    assert amdgcn_load_bytes("global_load_ushort v1, v[0:1], off") == 0
    assert amdgcn_resources(".private_segment_fixed_size: 12\n.vgpr_count:     97") == (97, 12)


def test_only_products_of_narrow_tiles_want_matrix_instructions() -> None:
    bf16 = (
        "%1 = tt.dot %a, %b, %c, inputPrecision = ieee : tensor<16x64xbf16> * tensor<64x32xbf16> -> tensor<16x32xf32>"
    )
    assert narrow_product_rows(bf16) == 16
    assert narrow_product_rows(f"{bf16}\n{bf16.replace('16x', '128x')}") == 128
    assert narrow_product_rows(bf16.replace("bf16", "f32")) == 0
    assert narrow_product_rows("%1 = arith.addf %a, %b : tensor<16x64xbf16>") == 0


def test_the_table_has_a_line_per_variant_and_a_column_per_chip() -> None:
    outcomes = [
        Outcome(Task("decode", "128 plain", "sm_90"), GOOD, ()),
        Outcome(Task("decode", "fp8", "sm_90"), replace(GOOD, spilled=4, shared=1280, matrix=""), ()),
        Outcome(Task("decode", "128 plain", "gfx942"), None, ("does not compile",)),
    ]
    assert table(outcomes).splitlines() == [
        "### decode",
        "",
        "| variant | sm_90 | gfx942 |",
        "|---|---|---|",
        "| 128 plain | 114 0 24 25% mma 16 | - |",
        "| fp8 | 114 4 1.2 25% - 16 | - |",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "benchmarks/gpu_check.sh"), (["--compile-only", "--chips", "sm_1"], "sm_1: choose from")],
)
def test_what_cannot_be_done_here_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.kernels.variants_by_module", dict)
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
