"""Llamas, with all that their configs may add, give what transformers' class of that name gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.registry import spec_from_config
from models.spec import RopeSpec
from tests.models.families.family_case import Expected, FamilyCase
from tests.models.families.gguf_writer import interleaved_heads, write_gguf

CASES = {
    case.name: case
    for case in [
        FamilyCase("llama", "llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
        FamilyCase(
            "llama with biases",
            "llama",
            {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5},
        ),
        FamilyCase(
            "llama with heads of its own",
            "llama",
            {"num_key_value_heads": 4, "head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ),
    ]
}
LLAMA32: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
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
@pytest.mark.parametrize("name", CASES)
def test_the_same_model_in_a_gguf_file_computes_the_same(
    name: str, directories: dict[str, Path], agrees: Any, tmp_path: Path
) -> None:
    head_dim = CASES[name].config.get("head_dim", 16)
    path = write_gguf(
        directories[name],
        tmp_path / "model.gguf",
        "llama",
        change=interleaved_heads,
        keys={"rope.dimension_count": head_dim},
    )
    agrees(path, CASES[name], Expected.read(directories[name]), chunk=90)


def test_the_config_of_llama32_is_read_as_published() -> None:
    spec = spec_from_config(LLAMA32)
    assert (spec.num_layers, spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (16, 32, 8, 64)
    assert (spec.max_position, spec.tied_embeddings, spec.checkpoint_dtype) == (131072, True, "bfloat16")
    assert spec.eos_token_ids == (128001, 128008, 128009)
    numbers = {key: value for key, value in LLAMA32["rope_scaling"].items() if key != "rope_type"}
    assert spec.layers[0].rope == RopeSpec(500_000.0, "llama3", numbers)


def test_the_config_of_smollm2_is_read_as_published() -> None:
    spec = spec_from_config(SMOLLM2)
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.vocab_size) == ("llama", 30, 576, 49152)
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (9, 3, 64, 1536)
    assert spec.layers[0].rope == RopeSpec(100_000.0)
