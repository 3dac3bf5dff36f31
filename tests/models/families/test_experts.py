"""Mixtral, OLMoE, and Qwen 2, Qwen 3 and Granite with experts give what transformers' classes of these names give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from models.checkpoint import resolve_checkpoint
from tests.models.families.family_case import Expected, FamilyCase
from tests.models.families.gguf_writer import interleaved_heads, write_gguf

MIXTRAL = {"num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}
QWEN3 = {
    "num_key_value_heads": 2,
    "head_dim": 24,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}
GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.5,
}
OLMOE = {"num_key_value_heads": 2, "num_experts": 6, "num_experts_per_tok": 3}
CASES = {
    case.name: case
    for case in [
        FamilyCase("mixtral", "mixtral", MIXTRAL),
        FamilyCase("mixtral with a window", "mixtral", MIXTRAL | {"sliding_window": 24, "num_experts_per_tok": 1}),
        FamilyCase("qwen3 normalised", "qwen3_moe", QWEN3 | {"norm_topk_prob": True}),
        FamilyCase(
            "qwen3 with dense layers",
            "qwen3_moe",
            QWEN3 | {"norm_topk_prob": False, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
        ),
        FamilyCase("olmoe", "olmoe", OLMOE),
        FamilyCase("olmoe normalised", "olmoe", OLMOE | {"norm_topk_prob": True, "num_key_value_heads": 4}),
        FamilyCase(
            "qwen2 with a shared expert",
            "qwen2_moe",
            QWEN3 | {"head_dim": None, "shared_expert_intermediate_size": 56, "mlp_only_layers": [0]},
        ),
        FamilyCase("granite", "granitemoe", MIXTRAL | GRANITE),
    ]
}
GGUF = {"mixtral": "llama", "granite": "granitemoe", "qwen3 normalised": "qwen3moe", "olmoe": "olmoe"}


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


def test_layers_are_sparse_where_the_config_says(directories: dict[str, Path]) -> None:
    spec = resolve_checkpoint(str(directories["qwen3 with dense layers"])).read_spec()
    assert [layer.is_sparse for layer in spec.layers] == [False, True, False, False, False]


def gguf_of(directory: Path, name: str, path: Path) -> Path:
    case = CASES[name].config
    experts = case.get("num_experts") or case["num_local_experts"]
    keys = {"expert_count": experts, "expert_used_count": case["num_experts_per_tok"]}
    if "moe_intermediate_size" in case:
        keys["expert_feed_forward_length"] = case["moe_intermediate_size"]
    if GGUF[name] == "granitemoe":
        keys |= {
            "embedding_scale": 6.0,
            "attention.scale": 0.2,
            "residual_scale": 0.6,
            "logit_scale": 1.5,
        }
    if GGUF[name] in ("llama", "granitemoe"):
        return write_gguf(directory, path, GGUF[name], change=interleaved_heads, keys=keys)
    return write_gguf(directory, path, GGUF[name], keys=keys)


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize("name", GGUF)
def test_the_same_model_in_a_gguf_file_computes_the_same(
    name: str, directories: dict[str, Path], agrees: Any, tmp_path: Path
) -> None:
    path = gguf_of(directories[name], name, tmp_path / "model.gguf")
    stacks = [tensor.name for tensor in gguf.GGUFReader(path).tensors if "_exps" in tensor.name]
    assert len(stacks) == 9
    agrees(path, CASES[name], Expected.read(directories[name]), chunk=90)
