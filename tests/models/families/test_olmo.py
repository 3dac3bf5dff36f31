"""Published configs of OLMo 1, 2 and 3 become exact specs."""

from __future__ import annotations

from typing import Any

from models.registry import spec_from_config
from models.spec import LayerSpec, NormKind, NormPlace, QKNorm, RopeSpec

OLMO_1B: dict[str, Any] = {
    "architectures": ["OlmoForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": None,
    "eos_token_id": 50279,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 2048,
    "model_type": "olmo",
    "num_attention_heads": 16,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "pad_token_id": 1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 50304,
}


OLMO_2_1B: dict[str, Any] = {
    "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "olmo2",
    "num_attention_heads": 16,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 100352,
}


def test_olmo_1b_is_read_as_published() -> None:
    spec = spec_from_config(OLMO_1B)
    assert (spec.norm, spec.norm_place, spec.norm_eps) == (NormKind.BARE_LAYER, NormPlace.BEFORE, 1e-5)
    assert (spec.qkv_limit, spec.tied_embeddings, spec.head_dim) == (None, True, 128)
    assert spec_from_config(OLMO_1B | {"clip_qkv": 8.0}).qkv_limit == 8.0


def test_olmo_2_1b_is_read_as_published() -> None:
    spec = spec_from_config(OLMO_2_1B)
    assert spec.layers == (LayerSpec(None, RopeSpec(500_000.0)),) * 16
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.norm_eps) == (16, 16, 128, 1e-6)
    assert (spec.norm_place, spec.qk_norm, spec.tied_embeddings) == (NormPlace.AFTER, QKNorm.ALL_HEADS, False)


def test_every_fourth_layer_of_olmo_3_sees_everything_and_it_alone_is_scaled() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    olmo3 = {"architectures": ["Olmo3ForCausalLM"], "sliding_window": 4096, "max_position_embeddings": 65_536}
    spec = spec_from_config(OLMO_2_1B | olmo3 | {"rope_scaling": scaling})
    sliding = LayerSpec(4096, RopeSpec(500_000.0))
    assert spec.layers == (*(sliding,) * 3, LayerSpec(None, RopeSpec(500_000.0, "linear", {"factor": 8.0}))) * 4
