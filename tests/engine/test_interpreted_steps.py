"""The engine over the GPU's own kernels, in Triton's interpreter, draws what it draws on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.startup import StageTimes, build_engine
from tests.engine.interpreted_steps import SETTINGS, run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("directory", ["tiny_llama_dir", pytest.param("tiny_gemma3_dir", marks=pytest.mark.slow)])
def test_triton_kernels_behind_the_device_runner_draw_the_cpus_tokens(
    directory: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(directory)
    engine, _ = build_engine(EngineConfig(model=str(model), **SETTINGS), StageTimes(), lambda progress: None)
    expected = run(engine)
    command = [sys.executable, "-m", "tests.engine.interpreted_steps", str(model)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[-1]) == expected
