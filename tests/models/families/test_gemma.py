"""Published configs of Gemma 1 and 2 become exact specs."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import LayerSpec, NormPlace, QKNorm, RopeSpec

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


def test_a_gemma_that_looks_ahead_is_refused() -> None:
    with pytest.raises(CheckpointError, match="use_bidirectional_attention is True, which is not supported"):
        spec_from_config(GEMMA_2_2B | {"use_bidirectional_attention": True})
