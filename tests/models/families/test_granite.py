"""Published configs of Granite become exact specs."""

from __future__ import annotations

from typing import Any

from models.registry import spec_from_config
from models.spec import LayerSpec, RopeSpec

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


def test_granite_3_1_2b_is_read_as_published() -> None:
    spec = spec_from_config(GRANITE_3_1_2B)
    assert (spec.embedding_scale, spec.attention_scale, spec.residual_scale) == (12.0, 0.015625, 0.22)
    assert (spec.logit_scale, spec.tied_embeddings, spec.num_kv_heads, spec.head_dim) == (0.125, True, 8, 64)
    assert spec.layers == (LayerSpec(None, RopeSpec(5_000_000.0)),) * 40
