"""LoRA adapters in PEFT's layout with random weights, and models whose weights have them merged in, as oracles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PREFIX = "base_model.model."
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def write_adapter(
    directory: Path,
    model: Path,
    *,
    seed: int,
    rank: int = 4,
    targets: tuple[str, ...] = (*ATTENTION, *MLP),
    dtype: torch.dtype = torch.float32,
    ranks: dict[str, int] | None = None,
    **config: object,
) -> Path:
    """An adapter of the model in the directory ``model``, strong enough to change what it says.

    ``ranks`` are those of single modules, by the end of their names; ``config`` has more of adapter_config.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith(targets):
            continue
        own = next((value for end, value in (ranks or {}).items() if module.endswith(end)), rank)
        outputs, columns = weight.shape
        a = torch.randn(own, columns, generator=generator) * columns**-0.5
        b = torch.randn(outputs, own, generator=generator) * own**-0.5
        weights[f"{PREFIX}{module}.lora_A.weight"] = a.to(dtype)
        weights[f"{PREFIX}{module}.lora_B.weight"] = b.to(dtype)
    save_file(weights, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    fields = {
        "peft_type": "LORA",
        "base_model_name_or_path": "org/tiny",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.1,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": sorted({target.rpartition(".")[2] for target in targets}),
        "rank_pattern": ranks or {},
    }
    (directory / "adapter_config.json").write_text(json.dumps(fields | config))
    return directory


def merged_model(directory: Path, model: Path, adapter: Path, scales: dict[str, float] | None = None) -> Path:
    """The model with W + scale B A for each weight that the adapter changes; ``scales`` by the end of names, else 1."""
    shutil.copytree(model, directory)
    weights = load_file(model / "model.safetensors")
    deltas = load_file(adapter / "adapter_model.safetensors")
    for name in deltas:
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            scale = next((value for end, value in (scales or {}).items() if module.endswith(end)), 1.0)
            delta = deltas[f"{PREFIX}{module}.lora_B.weight"].double() @ deltas[name].double()
            weights[f"{module}.weight"] = (weights[f"{module}.weight"].double() + scale * delta).float()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
