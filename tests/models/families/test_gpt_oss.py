"""gpt-oss with its experts in MXFP4: what is computed, and what is kept."""

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
from tests.models.families.cases.gpt_oss import FORM, GPT_OSS
from tests.models.families.gguf_writer import write_gguf

CPU = torch.device("cpu")
MXFP4 = GGMLQuantizationType.MXFP4


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
def packed_and_plain(checkpoint_of: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("mxfp4")
    in_mxfp4(checkpoint_of(GPT_OSS), root / "packed", root / "plain")
    return root / "packed", root / "plain"


def load(path: Path, *, keeps: bool = False) -> CausalLM:
    checkpoint = resolve_checkpoint(str(path))
    backend, _ = choose_backend(CPU)
    forms = WeightForms(Quantization.STORED, backend.weight_kernels) if keeps else None
    spec = checkpoint.read_spec()
    return load_model(checkpoint, spec, device=CPU, dtype=torch.float32, backend=backend, forms=forms)


def logits(model: CausalLM, paged_logits: Any) -> torch.Tensor:
    prompts = GPT_OSS.prompts
    rows = [list(range(len(prompt))) for prompt in prompts]
    return torch.cat(paged_logits(model, prompts, rows, chunk=32, dtype=torch.float32))


def test_a_gguf_file_holds_sinks_and_biases_of_experts(checkpoint_of: Any, tmp_path: Path) -> None:
    path = write_gguf(checkpoint_of(GPT_OSS), tmp_path / "model.gguf", FORM)
    assert {tensor.name for tensor in gguf.GGUFReader(path).tensors if tensor.name.startswith("blk.0.")} >= {
        "blk.0.attn_sinks.weight", "blk.0.post_attention_norm.weight", "blk.0.ffn_gate_exps.bias",
    }  # fmt: skip


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
        path = write_gguf(plain, tmp_path / "model.gguf", FORM, quantised={"exps.weight": MXFP4})
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
