"""Published configs of Phi 1 and 2 become exact specs, and what is not computed is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import RopeSpec

PHI2: dict[str, Any] = {
    "architectures": ["PhiForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 50256,
    "embd_pdrop": 0.0,
    "eos_token_id": 50256,
    "hidden_act": "gelu_new",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 10240,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "phi",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
    "resid_pdrop": 0.1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "vocab_size": 51200,
}


def test_the_config_of_phi2_is_read_as_published() -> None:
    spec = spec_from_config(PHI2)
    assert (spec.num_layers, spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (32, 32, 32, 80)
    assert (spec.max_position, spec.vocab_size, spec.checkpoint_dtype) == (2048, 51200, "float16")
    assert spec.layers[0].rope == RopeSpec(10_000.0, dim=32)


def test_norms_of_queries_and_keys_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="qk_layernorm is True, which is not supported"):
        spec_from_config(PHI2 | {"qk_layernorm": True})
