"""Checkpoints of coded weights compute what their numbers say, kept in their own bits, quantised anew, or as floats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.choices import choose_forms
from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.errors import CheckpointError
from models.loader import load_model, stored_forms
from models.model import CausalLM
from tests.models.codes import code_writer as write

CPU = torch.device("cpu")
Weights = dict[str, torch.Tensor]
Make = Callable[[int, int, int], tuple[Weights, torch.Tensor]]  # of rows, columns and a seed
CT = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
ROWS = {"strategy": "channel", "symmetric": True}


def groups(**weights: object) -> dict[str, object]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def fp8(rows: int, columns: int, seed: int) -> tuple[Weights, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    codes = torch.randn(rows, columns, generator=random).to(torch.float8_e4m3fn)
    scales = torch.rand(rows, 1, generator=random) * 0.1 + 0.02
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def int8(rows: int, columns: int, seed: int) -> tuple[Weights, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (rows, columns), generator=random).to(torch.int8)
    scales = (torch.rand(rows, 1, generator=random) * 2e-3 + 1e-3).bfloat16()
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales.float()


def packed(
    make: Callable[[write.Codes], Weights], **how: Any
) -> Callable[[int, int, int], tuple[Weights, torch.Tensor]]:
    def made(rows: int, columns: int, seed: int) -> tuple[Weights, torch.Tensor]:
        codes = write.draw(rows, columns, seed=seed, **how)
        return make(codes), codes.values

    return made


FORMATS: dict[str, tuple[dict[str, object], Make]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, packed(write.gptq, group=32)),
    "gptq of 8 bits": (
        {"quant_method": "gptq", "bits": 8, "group_size": 64},
        packed(lambda codes: write.gptq(codes, 8), group=64, bits=8, zero=128),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, packed(write.awq, group=64)),
    "compressed-tensors of 4 bits": (
        CT | groups(num_bits=4, type="int", strategy="group", symmetric=False),
        packed(lambda codes: write.pack_quantized(codes, is_symmetric=False), group=32, dtype=torch.bfloat16),
    ),
    "compressed-tensors int8": (CT | {"format": "int-quantized"} | groups(num_bits=8, type="int", **ROWS), int8),
    "compressed-tensors fp8": (CT | {"format": "float-quantized"} | groups(num_bits=8, type="float", **ROWS), fp8),
}
ORDERED = packed(write.gptq, group=32, shuffled=True)


def coded_copy(
    source: Path,
    directory: Path,
    config: dict[str, object],
    make: Make,
) -> tuple[Path, Path]:
    """The checkpoint ``source`` with drawn codes for the weights of its layers, and with the numbers they stand for."""
    coded, plain = (Path(shutil.copytree(source, directory / name)) for name in ("coded", "plain"))
    weights = load_file(source / "model.safetensors")
    stored, numbers = dict(weights), dict(weights)
    for index, (name, values) in enumerate(weights.items()):
        if values.ndim == 2 and ".layers." in name:
            # query, key and value, and gate and up, were calibrated on one input: their columns are ordered alike
            seed = 7 if any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate", "up")) else index
            parts, numbers[name] = make(*values.shape, seed)
            del stored[name]
            stored |= {f"{name.removesuffix('weight')}{ending}": part for ending, part in parts.items()}
    save_file({name: one.contiguous() for name, one in stored.items()}, coded / "model.safetensors")
    save_file(numbers, plain / "model.safetensors")
    described = json.loads((source / "config.json").read_text()) | {"quantization_config": config}
    (coded / "config.json").write_text(json.dumps(described))
    return coded, plain


def load(path: Path, quantization: str) -> CausalLM:
    checkpoint = resolve_checkpoint(str(path))
    backend, _ = choose_backend(CPU)
    forms = choose_forms(quantization, backend)
    return load_model(checkpoint, checkpoint.read_spec(), device=CPU, dtype=torch.float32, backend=backend, forms=forms)


def logits_of(model: CausalLM, paged_logits: Any) -> torch.Tensor:
    prompts = [[256, *range(40, 80)], [256, 9, 8, 7]]
    rows = [list(range(len(prompt))) for prompt in prompts]
    return torch.cat(paged_logits(model, prompts, rows, chunk=16, dtype=torch.float32))


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("name", FORMATS)
def test_codes_compute_what_their_numbers_do(
    name: str, tiny_llama_dir: Path, tmp_path: Path, paged_logits: Any
) -> None:
    coded, plain = coded_copy(tiny_llama_dir, tmp_path, *FORMATS[name])
    wanted = logits_of(load(plain, "none"), paged_logits)
    assert wanted.std() > 0.3
    torch.testing.assert_close(logits_of(load(coded, "none"), paged_logits), wanted, rtol=0, atol=1e-4)
    for quantization in ("auto", "int8"):  # inputs are rounded to 8 bits there
        error = logits_of(load(coded, quantization), paged_logits) - wanted
        assert error.norm() / wanted.norm() < 0.03, quantization


@pytest.mark.usefixtures("single_thread")
def test_columns_in_the_order_of_activations_meet_their_own_inputs(
    tiny_llama_dir: Path, tmp_path: Path, paged_logits: Any
) -> None:
    coded, plain = coded_copy(tiny_llama_dir, tmp_path, FORMATS["gptq"][0], ORDERED)
    wanted = logits_of(load(plain, "none"), paged_logits)
    torch.testing.assert_close(logits_of(load(coded, "none"), paged_logits), wanted, rtol=0, atol=1e-4)
    model = load(coded, "auto")
    assert model.weight_bytes() < 0.7 * load(plain, "none").weight_bytes()
    error = logits_of(model, paged_logits) - wanted
    assert error.norm() / wanted.norm() < 0.03


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_kept_in_their_own_bits(name: str, tiny_llama_dir: Path, tmp_path: Path) -> None:
    coded, plain = coded_copy(tiny_llama_dir, tmp_path, *FORMATS[name])
    layers = sum(values.nbytes for key, values in load_file(plain / "model.safetensors").items() if "proj" in key)
    saved = load(plain, "none").weight_bytes() - load(coded, "auto").weight_bytes()
    bits = 8 if "8" in name else 4
    kept_bits = 32 * (1 - saved / layers)
    assert bits <= kept_bits <= bits + 1.7  # codes, and scales and zeros of small groups


def test_matrices_that_are_ordered_differently_are_not_multiplied_together(
    tiny_llama_dir: Path, tmp_path: Path, paged_logits: Any
) -> None:
    seeds = iter(range(1000))

    def make(rows: int, columns: int, seed: int) -> tuple[Weights, torch.Tensor]:
        return ORDERED(rows, columns, next(seeds))

    coded, plain = coded_copy(tiny_llama_dir, tmp_path, FORMATS["gptq"][0], make)
    wanted = logits_of(load(plain, "none"), paged_logits)
    error = logits_of(load(coded, "auto"), paged_logits) - wanted
    assert error.norm() / wanted.norm() < 0.03


def test_the_forms_of_all_coded_weights_are_known_before_they_are_read(tiny_llama_dir: Path, tmp_path: Path) -> None:
    coded, _ = coded_copy(tiny_llama_dir, tmp_path, *FORMATS["awq"])
    checkpoint = resolve_checkpoint(str(coded))
    stored = stored_forms(checkpoint, checkpoint.read_spec())
    assert len(stored) == 2 * 7
    assert {(form.name, form.group) for form in stored.values()} == {("codes4", 64)}


def test_a_coded_weight_of_another_shape_is_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    coded, _ = coded_copy(tiny_llama_dir, tmp_path, *FORMATS["compressed-tensors int8"])
    weights = load_file(coded / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj"
    weights[f"{name}.weight"] = weights[f"{name}.weight"][:16].contiguous()
    weights[f"{name}.weight_scale"] = weights[f"{name}.weight_scale"][:16].contiguous()
    save_file(weights, coded / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(coded, "none")
    assert str(caught.value) == (
        f"{coded / 'model.safetensors'}: the tensor '{name}.weight' has the shape (16, 64) and should have (32, 64)"
    )


def test_a_coded_weight_without_its_scales_is_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    coded, _ = coded_copy(tiny_llama_dir, tmp_path, *FORMATS["awq"])
    weights = load_file(coded / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.scales"]
    save_file(weights, coded / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the coded weight 'model\.layers\.1.*k_proj' lacks"):
        load(coded, "none")
