"""Published configs of Qwen 2 and 2.5 become exact specs."""

from __future__ import annotations

from typing import Any

from models.registry import spec_from_config

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


def test_the_config_of_qwen25_is_read_as_published() -> None:
    spec = spec_from_config(QWEN25)
    assert (spec.num_layers, spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (24, 14, 2, 64)
    assert (spec.qkv_bias, spec.output_bias, spec.tied_embeddings) == (True, False, True)
    assert (spec.max_position, spec.eos_token_ids) == (32768, (151645,))
    assert {layer.window for layer in spec.layers} == {None}


def test_windows_that_are_asked_for_begin_behind_the_first_layers() -> None:
    spec = spec_from_config(QWEN25 | {"use_sliding_window": True, "sliding_window": 4096})
    assert [layer.window for layer in spec.layers] == [None] * 21 + [4096] * 3
