"""Mistral, Ministral and Ministral 3 give what transformers' classes of these names give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from models.attention import query_scales
from models.registry import spec_from_config
from models.spec import SharpeningSpec
from tests.models.families.family_case import Expected, FamilyCase
from tests.models.families.gguf_writer import interleaved_heads, write_gguf

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.1,
    "rope.dimension_count": 24,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
CASES = {
    case.name: case
    for case in [
        FamilyCase("mistral with a window", "mistral", {"num_key_value_heads": 2, "sliding_window": 24}),
        FamilyCase(
            "mistral with heads of its own",
            "mistral",
            {"num_key_value_heads": 1, "sliding_window": None, "head_dim": 24},
        ),
        FamilyCase(
            "ministral with windows on some layers",
            "ministral",
            {"num_key_value_heads": 2, "sliding_window": 20, "layer_types": KINDS, "head_dim": 32},
        ),
        FamilyCase("ministral3", "ministral3", {"num_key_value_heads": 2, "head_dim": 24, "rope_parameters": YARN}),
    ]
}
NEMO: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 131072,
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


@pytest.mark.usefixtures("single_thread")
@pytest.mark.parametrize(
    ("name", "architecture", "keys"),
    [
        ("mistral with a window", "llama", {"attention.sliding_window": 24}),
        ("mistral with heads of its own", "llama", {"rope.dimension_count": 24}),
        ("ministral3", "mistral3", YARN_KEYS),
    ],
)
def test_the_same_model_in_a_gguf_file_computes_the_same(
    name: str, architecture: str, keys: dict[str, Any], directories: dict[str, Path], agrees: Any, tmp_path: Path
) -> None:
    path = write_gguf(directories[name], tmp_path / "m.gguf", architecture, change=interleaved_heads, keys=keys)
    agrees(path, CASES[name], Expected.read(directories[name]), chunk=90)


def test_a_mistral_that_names_kinds_of_layers_is_a_ministral(directories: dict[str, Path]) -> None:
    config = json.loads((directories["ministral with windows on some layers"] / "config.json").read_text())
    spec = spec_from_config(config | {"architectures": ["MistralForCausalLM"]})
    assert [layer.window for layer in spec.layers] == [20, None, 20]


def test_the_config_of_mistral_nemo_is_read_as_published() -> None:
    spec = spec_from_config(NEMO)
    assert (spec.num_layers, spec.hidden_size, spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (
        40,
        5120,
        32,
        8,
        128,
    )
    assert (spec.max_position, spec.checkpoint_dtype, spec.attention_scale) == (131072, "bfloat16", 128**-0.5)
    assert {layer.window for layer in spec.layers} == {None}


def test_the_window_of_mistral_7b_is_on_all_layers() -> None:
    changes = {"sliding_window": 4096, "hidden_size": 4096, "max_position_embeddings": 32768, "num_hidden_layers": 32}
    spec = spec_from_config({key: value for key, value in NEMO.items() if key != "head_dim"} | changes)
    assert [layer.window for layer in spec.layers] == [4096] * 32
    assert spec.head_dim == 128


def test_a_window_as_wide_as_the_longest_context_is_none() -> None:
    assert {layer.window for layer in spec_from_config(NEMO | {"sliding_window": 131072}).layers} == {None}
    assert {layer.window for layer in spec_from_config(NEMO | {"sliding_window": 131071}).layers} == {131071}


def test_the_attention_of_ministral3_sharpens_with_every_original_length() -> None:
    ministral3 = NEMO | {"architectures": ["Ministral3ForCausalLM"]}
    spec = spec_from_config(ministral3 | {"rope_parameters": YARN})
    assert spec.sharpening == SharpeningSpec(0.1, 32)
    scales = query_scales(spec.sharpening, torch.tensor([0, 31, 32, 63, 64]))
    grown = [1.0, 1.0 + 0.1 * math.log(2.0), 1.0 + 0.1 * math.log(3.0)]
    assert scales.flatten().tolist() == pytest.approx([grown[0], grown[0], grown[1], grown[1], grown[2]])
    assert spec_from_config(ministral3 | {"rope_parameters": YARN | {"llama_4_scaling_beta": 0}}).sharpening is None
