"""Published configs of SmolLM 3 become exact specs, its layers that turn nothing included."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import CheckpointError
from models.registry import spec_from_config

SMOLLM3: dict[str, Any] = {
    "architectures": ["SmolLM3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128012,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "pad_token_id": 128004,
    "pretraining_tp": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": 128256,
}


@pytest.mark.parametrize("missing", [(), ("no_rope_layers",), ("no_rope_layers", "no_rope_layer_interval")])
def test_the_config_of_smollm3_is_read_as_published(missing: tuple[str, ...]) -> None:
    spec = spec_from_config({key: value for key, value in SMOLLM3.items() if key not in missing})
    assert (spec.num_layers, spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (36, 16, 4, 128)
    assert [layer.rope is not None for layer in spec.layers] == [True, True, True, False] * 9
    assert (spec.max_position, spec.tied_embeddings, spec.qkv_bias) == (65536, True, False)
    assert {layer.window for layer in spec.layers} == {None}


def test_windows_that_are_asked_for_are_on_the_layers_that_turn_nothing() -> None:
    config = SMOLLM3 | {"use_sliding_window": True, "sliding_window": 4096, "layer_types": None}
    assert [layer.window for layer in spec_from_config(config).layers] == [None, None, None, 4096] * 9


@pytest.mark.parametrize("listed", [[1, 0] * 17, [1, 2] * 18, "1110"])
def test_a_list_of_turning_layers_that_is_none_is_named(listed: object) -> None:
    with pytest.raises(CheckpointError, match="no_rope_layers should be 1 or 0 for each of 36 layers"):
        spec_from_config(SMOLLM3 | {"no_rope_layers": listed})
