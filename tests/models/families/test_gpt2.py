"""Published configs of GPT-2 become exact specs, and what is not computed is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.backends import choose_backend
from models.decoder import Decoder
from models.errors import CheckpointError
from models.registry import spec_from_config
from models.spec import LayerSpec, NormKind

GPT2_SMALL: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "vocab_size": 50257,
}


def test_gpt2_is_read_as_published() -> None:
    spec = spec_from_config(GPT2_SMALL)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_q_heads, spec.num_kv_heads) == (768, 3072, 12, 12)
    assert (spec.head_dim, spec.attention_scale, spec.max_position, spec.norm_eps) == (64, 0.125, 1024, 1e-5)
    assert spec.layers == (LayerSpec(None, None),) * 12
    assert (spec.norm, spec.activation, spec.learned_positions) == (NormKind.LAYER, "gelu_tanh", True)
    assert (spec.tied_embeddings, spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True,) * 4


def test_a_table_of_positions_is_never_quantised() -> None:
    cpu = torch.device("cpu")
    model = Decoder(spec_from_config(GPT2_SMALL), choose_backend(cpu)[0], dtype=torch.float32, device=cpu)
    parameters = model.parameters()
    assert parameters["model.embed_positions.weight"].keep is None
    assert parameters["model.embed_tokens.weight"].keep is not None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"n_head": "12"}, "n_head should be a positive whole number"),
    ],
)
def test_what_would_change_answers_is_refused_by_the_name_it_has_in_the_file(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_from_config(GPT2_SMALL | changes)
    assert str(caught.value).startswith(f"config.json: {problem}")
