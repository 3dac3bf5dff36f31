"""Published configs of Llamas become exact specs."""

from __future__ import annotations

from typing import Any

from models.registry import spec_from_config
from models.spec import RopeSpec

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
