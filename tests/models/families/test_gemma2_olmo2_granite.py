"""Published configs of Gemma 1 and 2, OLMo 1, 2 and 3, and Granite become exact specs."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import LayerSpec, NormKind, NormPlace, QKNorm, RopeSpec

GEMMA_2_2B: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 256000,
}
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
GRANITE_3_1_2B: dict[str, Any] = {
    "architectures": ["GraniteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.015625,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "logits_scaling": 8.0,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 49155,
}


def test_gemma_2_2b_is_read_as_published() -> None:
    spec = spec_from_config(GEMMA_2_2B)
    rope = RopeSpec(10_000.0)
    assert spec.layers == (LayerSpec(4096, rope), LayerSpec(None, rope)) * 13
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.hidden_size) == (8, 4, 256, 2304)
    assert (spec.attention_softcap, spec.logit_softcap, spec.attention_scale) == (50.0, 30.0, 0.0625)
    assert (spec.norm_place, spec.norm_plus_one, spec.qk_norm) == (NormPlace.AROUND, True, QKNorm.NONE)
    assert (spec.embedding_scale, spec.tied_embeddings, spec.activation) == (48.0, True, "gelu_tanh")


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_null_is_no_cap_and_a_missing_cap_of_gemma_2_the_usual_one(key: str) -> None:
    missing = {name: value for name, value in GEMMA_2_2B.items() if name != key}
    assert spec_from_config(missing) == spec_from_config(GEMMA_2_2B)
    spec = spec_from_config(GEMMA_2_2B | {key: None})
    capped = {"attn_logit_softcapping": spec.attention_softcap, "final_logit_softcapping": spec.logit_softcap}
    assert capped.pop(key) is None
    assert None not in capped.values()


def test_the_first_gemma_configs_mean_the_approximation_where_they_say_gelu() -> None:
    gemma = GEMMA_2_2B | {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu", "hidden_activation": None}
    spec = spec_from_config(gemma)
    assert (spec.activation, spec.norm_place, spec.attention_softcap) == ("gelu_tanh", NormPlace.BEFORE, None)
    assert {layer.window for layer in spec.layers} == {None}


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


def test_granite_3_1_2b_is_read_as_published() -> None:
    spec = spec_from_config(GRANITE_3_1_2B)
    assert (spec.embedding_scale, spec.attention_scale, spec.residual_scale) == (12.0, 0.015625, 0.22)
    assert (spec.logit_scale, spec.tied_embeddings, spec.num_kv_heads, spec.head_dim) == (0.125, True, 8, 64)
    assert spec.layers == (LayerSpec(None, RopeSpec(5_000_000.0)),) * 40


def test_a_gemma_that_looks_ahead_is_refused() -> None:
    with pytest.raises(CheckpointError, match="use_bidirectional_attention is True, which is not supported"):
        spec_from_config(GEMMA_2_2B | {"use_bidirectional_attention": True})
