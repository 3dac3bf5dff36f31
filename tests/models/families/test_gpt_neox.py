"""Published configs of GPT-NeoX become exact specs, and what is not computed is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import LayerSpec, Parallel, RopeSpec

PYTHIA_160M: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}


def test_pythia_160m_is_read_as_published() -> None:
    spec = spec_from_config(PYTHIA_160M)
    assert spec.layers == (LayerSpec(None, RopeSpec(10_000.0, dim=16)),) * 12
    assert (spec.parallel, spec.activation, spec.gated_mlp) == (Parallel.TWO_NORMS, "gelu", False)
    assert (spec.tied_embeddings, spec.qkv_bias, spec.checkpoint_dtype) == (False, True, "float16")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu', which is not supported"),
    ],
)
def test_what_would_change_answers_is_refused_by_the_name_it_has_in_the_file(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_from_config(PYTHIA_160M | changes)
    assert str(caught.value).startswith(f"config.json: {problem}")
