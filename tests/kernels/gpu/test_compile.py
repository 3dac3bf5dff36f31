"""The kernels compile for GPUs that are not here, within their shared memory, without spills, with matrix units."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED_MEMORY = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
SMALLEST_CARD = 99 * 1024  # sm_86 and sm_89, which run code for sm_80

ATTENTION = [
    f"{kernel}:{variant}"
    for kernel in ("decode", "prefill")
    for variant in (
        "128:bfloat16:sm_80:plain",
        "256:bfloat16:sm_80:full",
        "64:bfloat16:sm_90:full",
        "128:bfloat16:sm_90:full",
        "256:bfloat16:sm_90:plain",
    )
]
QUANTISED = [
    f"{kernel}:{variant}"
    for kernel in ("decode", "prefill")
    for variant in (
        "128:bfloat16/int8:sm_80:full",
        "256:bfloat16/int8:sm_80:full",
        "128:float16/int8:sm_90:plain",
        "256:bfloat16/int8:sm_90:full",
        "128:bfloat16/float8_e4m3fn:sm_90:full",
        "256:bfloat16/float8_e4m3fn:sm_90:full",
    )
]
OTHERS = [
    "store_kv:128:bfloat16/int8:sm_80:full",
    "store_kv:256:bfloat16/int8:sm_90:full",
    "store_kv:256:bfloat16/float8_e4m3fn:sm_90:full",
    "decode:128:float32/int8:sm_80:full",
    "decode:128:float32:sm_80:full",
    "prefill:128:float32:sm_90:full",
    "store_kv:128:bfloat16:sm_90:full",
    "reduce:128:bfloat16:sm_80:full",
    "decode:128:bfloat16:gfx942:full",
]


@pytest.fixture(scope="module")
def costs() -> dict[str, dict[str, Any]]:
    """What each kernel costs, compiled in one process that never heard of the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[3]
    environment["PYTHONPATH"] = str(root)
    program = Path(__file__).with_name("compile_kernels.py")
    run = subprocess.run(
        [sys.executable, str(program), *ATTENTION, *QUANTISED, *OTHERS],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return {cost["name"]: cost for cost in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("name", [*ATTENTION, *QUANTISED, *OTHERS])
def test_a_kernel_fits_its_gpu_and_spills_nothing(name: str, costs: dict[str, dict[str, Any]]) -> None:
    assert costs[name]["shared"] <= SHARED_MEMORY[name.split(":")[3]]
    assert costs[name]["spilled"] == 0


@pytest.mark.parametrize("name", [name for name in ATTENTION + QUANTISED if "sm_80" in name])
def test_the_smallest_cards_have_room_for_the_tiles(name: str, costs: dict[str, dict[str, Any]]) -> None:
    assert costs[name]["shared"] <= SMALLEST_CARD


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_multiplies_on_matrix_units_and_fetches_16_bytes_at_a_time(
    name: str, costs: dict[str, dict[str, Any]]
) -> None:
    hopper_prefill = name.startswith("prefill") and "sm_90" in name
    assert costs[name]["instructions"] == ("wgmma cp.async" if hopper_prefill else "mma cp.async")
