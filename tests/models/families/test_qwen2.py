"""Qwen 2 and 2.5 give what transformers' class of that name gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.registry import spec_from_config
from tests.models.families.family_case import Expected, FamilyCase
from tests.models.families.gguf_writer import write_gguf

YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    case.name: case
    for case in [
        FamilyCase("qwen2", "qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
        FamilyCase("qwen2 untied with yarn", "qwen2", {"num_key_value_heads": 1, "rope_parameters": YARN}),
        FamilyCase(
            "qwen2 with late windows",
            "qwen2",
            {
                "num_key_value_heads": 2,
                "use_sliding_window": True,
                "sliding_window": 20,
                "max_window_layers": 1,
            },
        ),
        FamilyCase(
            "qwen2 with named windows",
            "qwen2",
            {
                "num_key_value_heads": 4,
                "use_sliding_window": True,
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
        ),
    ]
}
QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
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
    ("name", "keys"),
    [
        ("qwen2", {}),
        (
            "qwen2 untied with yarn",
            {
                "rope.dimension_count": 16,
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
            },
        ),
    ],
)
def test_the_same_model_in_a_gguf_file_computes_the_same(
    name: str, keys: dict[str, Any], directories: dict[str, Path], agrees: Any, tmp_path: Path
) -> None:
    path = write_gguf(directories[name], tmp_path / "model.gguf", "qwen2", keys=keys)
    agrees(path, CASES[name], Expected.read(directories[name]), chunk=90)


def test_the_config_of_qwen25_is_read_as_published() -> None:
    spec = spec_from_config(QWEN25)
    assert (spec.num_layers, spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (24, 14, 2, 64)
    assert (spec.qkv_bias, spec.output_bias, spec.tied_embeddings) == (True, False, True)
    assert (spec.max_position, spec.eos_token_ids) == (32768, (151645,))
    assert {layer.window for layer in spec.layers} == {None}


def test_windows_that_are_asked_for_begin_behind_the_first_layers() -> None:
    spec = spec_from_config(QWEN25 | {"use_sliding_window": True, "sliding_window": 4096})
    assert [layer.window for layer in spec.layers] == [None] * 21 + [4096] * 3
