"""Published configs of Mistral, Ministral and Ministral 3 become exact specs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from models.attention import query_scales
from models.registry import spec_from_config
from models.spec import SharpeningSpec
from tests.models.families.cases.mistral import MINISTRAL, YARN

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


def test_a_mistral_that_names_kinds_of_layers_is_a_ministral(checkpoint_of: Any) -> None:
    config = json.loads((checkpoint_of(MINISTRAL) / "config.json").read_text())
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
