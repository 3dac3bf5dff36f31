"""Loading takes the memory of the model and at most a tenth more, whatever the checkpoint is stored as.

Measured is the whole resident memory of a process that loads one model and does nothing else, pages of mapped files
included, by the kernel's own high-water mark: not samples, which may miss a peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
ROWS_OF_HEAD = 64
MARGIN = 1.10

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs the kernel's high-water mark"),
]


@dataclass(frozen=True)
class Size:
    """Of a Llama, or of a Mixtral."""

    hidden: int
    inner: int
    layers: int
    vocabulary: int
    experts: int = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors."""
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "lm_head.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            found |= {f"{prefix}self_attn.{name}_proj.weight": (self.hidden, self.hidden) for name in "qkvo"}
            stack, mlp = ((self.experts,), "mlp.experts") if self.experts else ((), "mlp")
            found |= {f"{prefix}{mlp}.{name}_proj.weight": (*stack, self.inner, self.hidden) for name in ("gate", "up")}
            found[f"{prefix}{mlp}.down_proj.weight"] = (*stack, self.hidden, self.inner)
            if self.experts:
                found[f"{prefix}mlp.gate.weight"] = (self.experts, self.hidden)
            found |= {f"{prefix}{name}_layernorm.weight": (self.hidden,) for name in ("input", "post_attention")}
        return found


LARGE = Size(hidden=1024, inner=2816, layers=14, vocabulary=4096)  # 188 million parameters
SMALL = Size(hidden=128, inner=256, layers=1, vocabulary=512)
LARGE_MIXTURE = Size(hidden=1024, inner=352, layers=14, vocabulary=4096, experts=8)  # as many, but for the routers
SMALL_MIXTURE = Size(hidden=128, inner=256, layers=1, vocabulary=512, experts=4)


def write_safetensors(directory: Path, size: Size) -> Path:
    """The model in bfloat16, random, in three shards."""
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": size.hidden, "intermediate_size": size.inner,
        "num_hidden_layers": size.layers, "num_attention_heads": size.hidden // ROWS_OF_HEAD,
        "vocab_size": size.vocabulary, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "dtype": "bfloat16",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    shapes = size.shapes()
    names, weight_map = sorted(shapes), {}
    for number in range(3):
        file = f"model-0000{number + 1}-of-00003.safetensors"
        mine = names[number * len(names) // 3 : (number + 1) * len(names) // 3]
        weights = {
            name: torch.empty(shapes[name], dtype=torch.bfloat16).uniform_(-1, 1, generator=generator) for name in mine
        }
        save_file(weights, directory / file)
        weight_map |= dict.fromkeys(mine, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def write_gguf(path: Path, size: Size) -> Path:
    """The model in Q8_0, random."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(size.hidden)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.inner)
    writer.add_head_count(size.hidden // ROWS_OF_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    if size.experts:
        writer.add_expert_count(size.experts)
        writer.add_expert_used_count(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, size.layers)
    random = np.random.default_rng(1)
    block = np.dtype([("scale", "<f2"), ("codes", "i1", 32)])
    for name, shape in size.shapes().items():
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        if len(shape) == 1:
            writer.add_tensor(gguf_name, np.ones(shape, np.float32))
            continue
        blocks = np.zeros((*shape[:-1], shape[-1] // 32), block)
        blocks["scale"] = 0.01
        blocks["codes"] = random.integers(-127, 128, (*blocks.shape, 32), np.int8)
        rows = blocks.view(np.uint8).reshape(*shape[:-1], -1)
        writer.add_tensor(gguf_name, rows, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True)
class Models:
    """A model that is measured, and a small one of its kind."""

    large: Path
    small: Path


@pytest.fixture(scope="module")
def safetensors_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    directories = (tmp_path_factory.mktemp(name) for name in ("large", "small"))
    return Models(*(write_safetensors(one, size) for one, size in zip(directories, (LARGE, SMALL), strict=True)))


@pytest.fixture(scope="module")
def gguf_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    directory = tmp_path_factory.mktemp("gguf")
    return Models(*(write_gguf(directory / f"{size.hidden}.gguf", size) for size in (LARGE, SMALL)))


def measured(models: Models, dtype: str, quantization: str) -> dict[str, int]:
    script = Path(__file__).with_name("loading_memory.py")
    command = [sys.executable, str(script), str(models.large), str(models.small), dtype, quantization]
    search_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": search_path}
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("dtype", "quantization", "bytes_per_weight"),
    [("bfloat16", "none", 2), ("float32", "none", 4), ("float32", "int8", 1), ("float32", "int4", 0.5)],
)
def test_safetensors_take_the_memory_of_the_model_and_a_tenth(
    safetensors_models: Models, dtype: str, quantization: str, bytes_per_weight: float
) -> None:
    found = measured(safetensors_models, dtype, quantization)
    assert bytes_per_weight * 0.95 < found["weights"] / 188_249_088 < bytes_per_weight * 1.4
    assert found["peak"] <= found["weights"] * MARGIN, found
    assert found["after"] >= found["weights"] * 0.95, found


@pytest.mark.parametrize(
    ("dtype", "quantization", "bytes_per_weight"), [("float32", "auto", 1), ("bfloat16", "none", 2)]
)
def test_a_gguf_file_takes_the_memory_of_the_model_and_a_tenth(
    gguf_models: Models, dtype: str, quantization: str, bytes_per_weight: float
) -> None:
    found = measured(gguf_models, dtype, quantization)
    assert bytes_per_weight * 0.95 < found["weights"] / 188_249_088 < bytes_per_weight * 1.4
    assert found["peak"] <= found["weights"] * MARGIN, found


@pytest.mark.parametrize(
    ("dtype", "quantization", "bytes_per_weight"),
    [("float32", "auto", 1), ("bfloat16", "none", 2)],
)
def test_stacks_of_experts_take_the_memory_of_the_model_and_a_tenth(
    tmp_path: Path, dtype: str, quantization: str, bytes_per_weight: float
) -> None:
    large, small = (write_gguf(tmp_path / f"{size.hidden}.gguf", size) for size in (LARGE_MIXTURE, SMALL_MIXTURE))
    found = measured(Models(large, small), dtype, quantization)
    assert bytes_per_weight * 0.95 < found["weights"] / 188_249_088 < bytes_per_weight * 1.4
    assert found["peak"] <= found["weights"] * MARGIN, found
