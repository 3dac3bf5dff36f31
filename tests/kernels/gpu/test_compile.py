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
        "128:g4:bfloat16/bfloat16:plain@sm_80",
        "256:g4:bfloat16/bfloat16:window@sm_80",
        "128:g8:bfloat16/bfloat16:deterministic@sm_80",
        "64:g8:bfloat16/bfloat16:plain@sm_90",
        "128:g8:bfloat16/bfloat16:window+softcap+sinks@sm_90",
        "256:g4:bfloat16/bfloat16:window@sm_90",
        "256:g4:bfloat16/bfloat16:deterministic@sm_90",
    )
]
QUANTISED = [
    f"{kernel}:{variant}"
    for kernel in ("decode", "prefill")
    for variant in (
        "64:g1:float16/int8:window+sinks@sm_80",
        "256:g2:bfloat16/int8:window+softcap@sm_80",
        "256:g2:bfloat16/int8:window+softcap@sm_90",
        "128:g4:bfloat16/int8:softcap+deterministic@sm_90",
        "128:g8:bfloat16/float8_e4m3fn:plain@sm_90",
    )
]
OTHERS = [
    "store_kv:128:bfloat16/int8:rotary@sm_80",
    "store_kv:256:bfloat16/bfloat16:norm+rotary@sm_80",
    "store_kv:256:bfloat16/float8_e4m3fn:norm+rotary@sm_90",
    "store_kv:128:bfloat16/bfloat16:plain@sm_90",
    "decode:128:g4:float32/int8:plain@sm_80",
    "decode:128:g4:float32/float32:window@sm_80",
    "prefill:128:g4:float32/float32:window@sm_90",
    "reduce:128:g4:bfloat16/bfloat16:plain:prefix@sm_80",
    "cascade:128:g4:bfloat16/bfloat16:plain@sm_80",
    "cascade:128:g8:bfloat16/float8_e4m3fn:plain@sm_90",
    "decode:128:g8:bfloat16/bfloat16:window+softcap+sinks@gfx942",
    "prefill:128:g4:bfloat16/bfloat16:plain@gfx942",
    "prefill:64:g1:float16/int8:window+sinks@gfx942",
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
    assert costs[name]["shared"] <= SHARED_MEMORY[name.split("@")[1]]
    assert costs[name]["spilled"] == 0


@pytest.mark.parametrize("name", [name for name in ATTENTION + QUANTISED if "sm_80" in name])
def test_the_smallest_cards_have_room_for_the_tiles(name: str, costs: dict[str, dict[str, Any]]) -> None:
    assert costs[name]["shared"] <= SMALLEST_CARD


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_multiplies_on_matrix_units_and_fetches_16_bytes_at_a_time(
    name: str, costs: dict[str, dict[str, Any]]
) -> None:
    has_64_rows = name.startswith("prefill") or "deterministic" in name  # the fewest that Hopper's own units take
    is_hopper = name.endswith("sm_90")
    assert costs[name]["instructions"] == ("wgmma cp.async" if is_hopper and has_64_rows else "mma cp.async")
