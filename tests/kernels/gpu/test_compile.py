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
    f"{kernel}:{head_dim}:bfloat16:{architecture}"
    for kernel in ("decode", "prefill")
    for architecture, head_dim in (("sm_80", 128), ("sm_80", 256), ("sm_90", 64), ("sm_90", 128), ("sm_90", 256))
]
OTHERS = [
    "decode:128:float32:sm_80",
    "prefill:128:float32:sm_90",
    "store_kv:128:bfloat16:sm_90",
    "reduce:128:bfloat16:sm_80",
    "decode:128:bfloat16:gfx942",
]


@pytest.fixture(scope="module")
def costs() -> dict[str, dict[str, Any]]:
    """What each kernel costs, compiled in one process that never heard of the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[3]
    environment["PYTHONPATH"] = str(root)
    program = Path(__file__).with_name("compile_kernels.py")
    run = subprocess.run(
        [sys.executable, str(program), *ATTENTION, *OTHERS],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return {cost["name"]: cost for cost in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("name", [*ATTENTION, *OTHERS])
def test_a_kernel_fits_its_gpu_and_spills_nothing(name: str, costs: dict[str, dict[str, Any]]) -> None:
    assert costs[name]["shared"] <= SHARED_MEMORY[name.rsplit(":", 1)[1]]
    assert costs[name]["spilled"] == 0


@pytest.mark.parametrize("name", [name for name in ATTENTION if name.endswith("sm_80")])
def test_the_smallest_cards_have_room_for_the_tiles(name: str, costs: dict[str, dict[str, Any]]) -> None:
    assert costs[name]["shared"] <= SMALLEST_CARD


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_multiplies_on_matrix_units_and_fetches_16_bytes_at_a_time(
    name: str, costs: dict[str, dict[str, Any]]
) -> None:
    hopper_prefill = name.startswith("prefill") and name.endswith("sm_90")
    assert costs[name]["instructions"] == ("wgmma cp.async" if hopper_prefill else "mma cp.async")
