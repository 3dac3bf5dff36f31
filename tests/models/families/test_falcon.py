"""Published configs of Falcon become exact specs, and what is not computed is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import LayerSpec, Parallel, RopeSpec

FALCON_7B: dict[str, Any] = {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0,
    "bias": False,
    "bos_token_id": 11,
    "eos_token_id": 11,
    "hidden_dropout": 0.0,
    "hidden_size": 4544,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 65024,
}


def test_falcon_7b_is_read_as_published() -> None:
    spec = spec_from_config(FALCON_7B)
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (71, 1, 64, 18_176)
    assert spec.layers == (LayerSpec(None, RopeSpec(10_000.0)),) * 32
    assert (spec.parallel, spec.activation, spec.max_position) == (Parallel.ONE_NORM, "gelu", 2048)
    assert (spec.tied_embeddings, spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, False, False, False)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"alibi": True}, "alibi is True, which is not supported"),
        ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2, which is not supported"),
    ],
)
def test_what_would_change_answers_is_refused_by_the_name_it_has_in_the_file(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_from_config(FALCON_7B | changes)
    assert str(caught.value).startswith(f"config.json: {problem}")
