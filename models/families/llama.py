"""Llama (Touvron et al., 2023) and what follows it to the letter: pre-norm attention and a gated MLP."""

from __future__ import annotations

from collections.abc import Mapping

from models.families.family import Family, Values
from models.families.heads import read_heads
from models.families.names import (
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_IGNORED,
    GGUF_NORMS_BEFORE,
    GGUF_TOP,
    LLAMA_NAMES,
    interleaved_key,
    interleaved_query,
)
from models.families.rope import longest_length, read_rope
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec
from models.tensor_names import TensorNames


def read_llama(
    fields: Fields, *, default_theta: float = 10_000.0, rope_aliases: Mapping[str, str] | None = None
) -> ModelSpec:
    """A Llama; other families change what differs. ``rope_aliases``: see `read_rope`."""
    fields.refuse_unless("num_local_experts", 0)
    heads = read_heads(fields)
    rope = read_rope(fields, default_theta=default_theta, head_dim=heads.dim, aliases=rope_aliases)
    layer = LayerSpec(fields.optional_integer("sliding_window"), rope)
    has_bias = fields.flag("attention_bias", default=False)
    return ModelSpec(
        architecture="llama",
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        vocab_size=fields.integer("vocab_size"),
        max_position=longest_length(fields, rope),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        layers=(layer,) * fields.layer_count(),
        attention_scale=heads.dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        activation=fields.choice("hidden_act", {"silu": "silu"}, "silu"),
        mlp_bias=fields.flag("mlp_bias", default=False),
        qkv_bias=has_bias,
        output_bias=fields.flag("attention_output_bias", default=has_bias),
    )


def _read(fields: Fields) -> ModelSpec:
    if not fields.is_gguf:  # Mistral's GGUF files are called Llamas too
        fields.refuse_unless("sliding_window")
    return read_llama(fields)


def _has_no_experts(values: Values) -> bool:
    return not values.get("num_local_experts")


# Also of what llama.cpp turns as it does Llamas: neighbours, not halves.
LLAMA_GGUF_NAMES = TensorNames(
    "blk.",
    GGUF_TOP,
    GGUF_ATTENTION | GGUF_GATED_MLP | GGUF_NORMS_BEFORE | {"attn_q": interleaved_query, "attn_k": interleaved_key},
    ignored=GGUF_IGNORED,
)
LLAMA = Family(
    "llama",
    architectures=("LlamaForCausalLM", "llama"),
    read=_read,
    names=LLAMA_NAMES,
    gguf_architectures=("llama",),
    gguf_names=LLAMA_GGUF_NAMES,
    takes_gguf=_has_no_experts,
)
