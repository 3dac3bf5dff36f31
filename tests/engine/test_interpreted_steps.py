"""The engine over the GPU's own kernels, in Triton's interpreter, draws what it draws on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.startup import StageTimes, build_engine
from tests.engine.interpreted_steps import SETTINGS, run
from tests.job_process import JobProcess
from tests.models.test_loader import write_gguf

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    """A process whose kernels are interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.engine.interpreted_jobs"]
    process = JobProcess(command, tmp_path_factory.mktemp("interpreted"), cwd=ROOT, environment=environment)
    yield process
    process.close()


@pytest.fixture(scope="module")
def two_layers_of_gemma3(tiny_gemma3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer with a window and one without: the interpreter takes its time for each, and others add no kernel."""
    directory = tmp_path_factory.mktemp("two-layers")
    shutil.copytree(tiny_gemma3_dir, directory, dirs_exist_ok=True)
    config = json.loads((tiny_gemma3_dir / "config.json").read_text())
    shorter = {"num_hidden_layers": 2, "sliding_window_pattern": 2}
    (directory / "config.json").write_text(json.dumps(config | shorter))
    weights = load_file(tiny_gemma3_dir / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if ".layers." not in name or name.split(".")[2] in "01"}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    "directory",
    [
        "tiny_llama_dir",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("two_layers_of_gemma3", "tiny_mixtral_dir")),
    ],
)
def test_triton_kernels_behind_the_device_runner_draw_the_cpus_tokens(
    directory: str, interpreted: JobProcess, request: pytest.FixtureRequest
) -> None:
    """A page that two of them share is read by the shared-prefix kernel, the others by plain decode."""
    model = request.getfixturevalue(directory)
    report = interpreted.ask("steps", model=str(model), settings={})
    assert report["tokens"] == tokens_on_the_cpu(model)
    assert report["shared"] > 0


def tokens_on_the_cpu(model: Path) -> dict[str, list[int]]:
    """Those of the model in float32."""
    config = EngineConfig(model=str(model), quantization="none", **SETTINGS)
    engine, _ = build_engine(config, StageTimes(), lambda progress: None)
    return run(engine)


def dequantised(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """``weight`` as 8 bits with a scale a row, or 4 with one for 128 columns or 64, keep it."""
    columns = weight.shape[1]
    groups = weight.view(len(weight), -1, columns if bits == 8 else 128 if columns % 128 == 0 else 64)
    scales = groups.abs().amax(dim=2, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((groups / scales).round() * scales).view_as(weight)


@pytest.mark.parametrize(
    ("directory", "bits"),
    [
        ("tiny_llama_dir", 4),
        pytest.param("tiny_llama_dir", 8, marks=pytest.mark.slow),
        pytest.param("two_layers_of_gemma3", 8, marks=pytest.mark.slow),
        pytest.param("two_layers_of_gemma3", 4, marks=pytest.mark.slow),
    ],
)
def test_quantised_weights_draw_the_tokens_of_their_values_and_take_their_bits(
    directory: str, bits: int, interpreted: JobProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(directory)
    shutil.copytree(model, tmp_path / "values")
    values, num_bytes = {}, 0
    for name, weight in load_file(model / "model.safetensors").items():
        values[name] = weight
        if weight.dim() == 1:
            num_bytes += weight.nbytes
            continue
        kept_bits = 8 if "embed" in name or "lm_head" in name else bits
        values[name] = dequantised(weight, kept_bits)
        scales = 1 if kept_bits == 8 else -(-weight.shape[1] // 128)
        num_bytes += weight.numel() * kept_bits // 8 + 4 * len(weight) * scales
    save_file(values, tmp_path / "values" / "model.safetensors", metadata={"format": "pt"})
    found = interpreted.ask("steps", model=str(model), settings={"quantization": f"int{bits}"})
    assert found["tokens"] == tokens_on_the_cpu(tmp_path / "values")
    assert (found["weight_bytes"], found["weight_form"]) == (num_bytes, f"int{bits}")


@pytest.mark.parametrize(
    ("stored", "form"),
    [
        (GGMLQuantizationType.Q8_0, "in the file's own bits (Q8_0)"),
        pytest.param(GGMLQuantizationType.Q4_0, "in the file's own bits (Q4_0)", marks=pytest.mark.slow),
        pytest.param(GGMLQuantizationType.Q5_0, "float32 (no kernels here for Q5_0)", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_gguf_file_is_served_in_its_own_bits_where_there_are_kernels_and_else_in_floats(
    stored: GGMLQuantizationType, form: str, interpreted: JobProcess, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    model = write_gguf(tiny_llama_dir, tmp_path / "m.gguf", "llama", stored)
    found = interpreted.ask("steps", model=str(model), settings={})
    assert found["tokens"] == tokens_on_the_cpu(model)
    assert found["weight_form"] == form
    weights = [one for one in load_file(tiny_llama_dir / "model.safetensors").values() if one.dim() == 2]
    bits = {GGMLQuantizationType.Q8_0: 8.5, GGMLQuantizationType.Q4_0: 4.5}.get(stored, 32)
    assert found["weight_bytes"] == sum(one.numel() for one in weights) * bits / 8 + 5 * 64 * 4  # and norms


@pytest.mark.parametrize(
    ("directory", "settings"),
    [
        ("tiny_llama_dir", {"dtype": "bfloat16"}),
        pytest.param("tiny_llama_dir", {"dtype": "float32"}, marks=pytest.mark.slow),
        pytest.param("two_layers_of_gemma3", {"dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param("tiny_llama_dir", {"dtype": "bfloat16", "quantization": "int4"}, marks=pytest.mark.slow),
        pytest.param("two_layers_of_gemma3", {"dtype": "bfloat16", "quantization": "int8"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_logits_of_the_deterministic_mode_are_bitwise_equal_alone_together_in_chunks_and_from_cached_pages(
    directory: str, settings: dict[str, str], interpreted: JobProcess, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(directory)
    found = interpreted.ask("bits", model=str(model), settings=settings)
    assert found == {"together": [], "chunked": [], "cached": [], "cached tokens": 16 + 32}
