"""The engine over the GPU's own kernels, in Triton's interpreter, draws what it draws on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.startup import StageTimes, build_engine
from tests.engine.interpreted_steps import SETTINGS, run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("directory", ["tiny_llama_dir", pytest.param("tiny_gemma3_dir", marks=pytest.mark.slow)])
def test_triton_kernels_behind_the_device_runner_draw_the_cpus_tokens(
    directory: str, request: pytest.FixtureRequest
) -> None:
    """A page that two of them share is read by the shared-prefix kernel, the others by plain decode."""
    model = request.getfixturevalue(directory)
    engine, _ = build_engine(EngineConfig(model=str(model), **SETTINGS), StageTimes(), lambda progress: None)
    expected = run(engine)
    report = interpreted("tests.engine.interpreted_steps", str(model))
    assert report["tokens"] == expected
    assert report["shared"] > 0


@pytest.mark.parametrize(
    ("directory", "dtype"),
    [
        ("tiny_llama_dir", "bfloat16"),
        pytest.param("tiny_llama_dir", "float32", marks=pytest.mark.slow),
        pytest.param("tiny_gemma3_dir", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_logits_of_the_deterministic_mode_are_bitwise_equal_alone_together_in_chunks_and_from_cached_pages(
    directory: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(directory)
    found = interpreted("tests.engine.interpreted_bits", str(model), json.dumps({"dtype": dtype}))
    assert found == {"together": [], "chunked": [], "cached": [], "cached tokens": 16 + 32}


def interpreted(module: str, *arguments: str) -> Any:
    """What a module prints as JSON at last, in a process whose kernels are interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])
