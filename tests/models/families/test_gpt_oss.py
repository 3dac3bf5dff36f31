"""gpt-oss gives what transformers' class of that name gives, from plain floats, from MXFP4 and from GGUF files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file

from kernels.backends import choose_backend
from kernels.cpu.quantised_matrix import QuantisedProduct
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.model import CausalLM
from models.weight_forms import Quantization, WeightForms
from tests.models.families.family_case import Expected, FamilyCase
from tests.models.families.gguf_writer import write_gguf

CPU = torch.device("cpu")
MXFP4 = GGMLQuantizationType.MXFP4
CONFIG = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 24,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
CASES = {
    case.name: case
    for case in [
        FamilyCase("yarn", "gpt_oss", CONFIG | {"rope_parameters": YARN}),
        FamilyCase(
            "full layer first",
            "gpt_oss",
            CONFIG
            | {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                "num_experts_per_tok": 4,
            },
        ),
    ]
}


@pytest.fixture(scope="module")
def directories(make_checkpoints: Any) -> dict[str, Path]:
    checkpoints: dict[str, Path] = make_checkpoints(list(CASES.values()))
    return checkpoints


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("chunk", [7, 90])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    name: str, chunk: int, directories: dict[str, Path], agrees: Any
) -> None:
    agrees(directories[name], CASES[name], Expected.read(directories[name]), chunk=chunk)


def split_gate_and_up(directory: Path, target: Path) -> Path:
    """The checkpoint with gate and up projections apart, as llama.cpp's converter cuts them, under names it knows."""
    shutil.copytree(directory, target)
    tensors = {}
    for name, values in load_file(directory / "model.safetensors").items():
        stem = name.removesuffix("_bias")
        ending = ".bias" if stem != name else ".weight"
        if stem.endswith("gate_up_proj"):
            rows = values if ending == ".bias" else values.swapaxes(1, 2)
            for first, part in enumerate(("gate_proj", "up_proj")):
                tensors[stem.replace("gate_up_proj", part) + ending] = np.ascontiguousarray(rows[:, first::2])
        elif stem.endswith("experts.down_proj"):
            tensors[stem + ending] = np.ascontiguousarray(values if ending == ".bias" else values.swapaxes(1, 2))
        else:
            tensors[name + ".weight" if name.endswith("sinks") else name] = values
    save_file(tensors, target / "model.safetensors")
    return target


KEYS = {
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_feed_forward_length": 96,
    "attention.sliding_window": 24,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 64,
}


@pytest.mark.usefixtures("single_thread")
def test_the_same_model_in_a_gguf_file_computes_the_same(
    directories: dict[str, Path], agrees: Any, tmp_path: Path
) -> None:
    apart = split_gate_and_up(directories["yarn"], tmp_path / "apart")
    path = write_gguf(apart, tmp_path / "model.gguf", "gpt-oss", keys=KEYS)
    assert {tensor.name for tensor in gguf.GGUFReader(path).tensors if tensor.name.startswith("blk.0.")} >= {
        "blk.0.attn_sinks.weight", "blk.0.post_attention_norm.weight", "blk.0.ffn_gate_exps.bias",
    }  # fmt: skip
    agrees(path, CASES["yarn"], Expected.read(directories["yarn"]), chunk=90)


def in_mxfp4(directory: Path, packed: Path, plain: Path) -> None:
    """The checkpoint with its experts in MXFP4 as gpt-oss is published, and with the same values as floats."""
    for target in (packed, plain):
        shutil.copytree(directory, target)
    tensors, floats = load_file(directory / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        stored = quantize(np.ascontiguousarray(tensors.pop(name).swapaxes(1, 2)), MXFP4)
        floats[name] = np.ascontiguousarray(dequantize(stored, MXFP4).swapaxes(1, 2))
        groups = stored.reshape(*stored.shape[:2], -1, 17)
        halves = np.concatenate([groups[..., 1:] & 15, groups[..., 1:] >> 4], axis=-1)  # codes, column by column
        tensors[f"{name}_blocks"] = halves[..., ::2] | halves[..., 1::2] << 4
        tensors[f"{name}_scales"] = np.ascontiguousarray(groups[..., 0])
    save_file(tensors, packed / "model.safetensors")
    others = {name: values for name, values in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    save_file(others | floats, plain / "model.safetensors")
    config = json.loads((packed / "config.json").read_text())
    del config["dtype"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (packed / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def packed_and_plain(directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("mxfp4")
    in_mxfp4(directories["yarn"], root / "packed", root / "plain")
    return root / "packed", root / "plain"


def load(path: Path, *, keeps: bool = False) -> CausalLM:
    checkpoint = resolve_checkpoint(str(path))
    backend, _ = choose_backend(CPU)
    forms = WeightForms(Quantization.STORED, backend.weight_kernels) if keeps else None
    spec = checkpoint.read_spec()
    return load_model(checkpoint, spec, device=CPU, dtype=torch.float32, backend=backend, forms=forms)


def logits(model: CausalLM, paged_logits: Any) -> torch.Tensor:
    prompts = CASES["yarn"].prompts
    rows = [list(range(len(prompt))) for prompt in prompts]
    return torch.cat(paged_logits(model, prompts, rows, chunk=32, dtype=torch.float32))


@pytest.mark.usefixtures("single_thread")
def test_experts_in_mxfp4_are_the_floats_that_they_stand_for(
    packed_and_plain: tuple[Path, Path], paged_logits: Any
) -> None:
    packed, plain = packed_and_plain
    assert resolve_checkpoint(str(packed)).read_spec().checkpoint_dtype == "bfloat16"
    assert torch.equal(logits(load(packed), paged_logits), logits(load(plain), paged_logits))


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("is_gguf", [False, True], ids=["safetensors", "gguf"])
def test_experts_in_mxfp4_are_kept_in_their_own_bits_without_loss(
    is_gguf: bool, packed_and_plain: tuple[Path, Path], paged_logits: Any, tmp_path: Path
) -> None:
    packed, plain = packed_and_plain
    path = packed
    if is_gguf:
        apart = split_gate_and_up(plain, tmp_path / "apart")
        path = write_gguf(apart, tmp_path / "model.gguf", "gpt-oss", keys=KEYS, quantised={"exps.weight": MXFP4})
    model = load(path, keeps=True)
    experts = model._layers[1]._mlp._mlps._mlps
    stored = torch.from_numpy(load_file(plain / "model.safetensors")["model.layers.1.mlp.experts.gate_up_proj"])
    for number, expert in enumerate(experts):
        product = expert._gate_up._product._kept
        assert isinstance(product, QuantisedProduct)
        assert product.nbytes == 12 * (64 + 16 * 64 // 2)  # panels: scales, filled up to a cache line, and nibbles
        gate, up = (matrix.unpack(torch.arange(96)) for matrix in product.matrices)
        assert torch.equal(gate, stored[number].T[::2])
        assert torch.equal(up, stored[number].T[1::2])
    difference = logits(model, paged_logits) - logits(load(plain), paged_logits)
    assert 0 < difference.abs().median() < 0.05  # inputs are rounded to a byte; a few tokens change experts by that
