"""Gemma 3 text models: norms around each branch, QK-norm, five sliding layers to a full one.

Source: Gemma 3 technical report (2025).
"""

from __future__ import annotations

from functools import partial

from models.families.family import Family
from models.families.gemma import HEAD_DIM, with_scale_dim
from models.families.heads import read_heads
from models.families.layers import read_layers
from models.families.names import (
    ATTENTION,
    GATED_MLP,
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_AROUND,
    GGUF_QK_NORMS,
    NORMS_AROUND,
    QK_NORMS,
    TOP,
    gguf_names,
)
from models.families.rope import read_ropes
from models.fields import Fields
from models.spec import ModelSpec, NormPlace, QKNorm
from models.tensor_names import TensorNames

_PATTERN = 6  # five sliding layers, then one that sees everything
_LOCAL_THETA = 10_000.0


def _read(fields: Fields) -> ModelSpec:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse_unless(key, 0.0)
    for key in ("attention_bias", "use_bidirectional_attention"):
        fields.refuse_unless(key, False)
    hidden_size = fields.integer("hidden_size")
    fields.integer("num_key_value_heads")
    heads = read_heads(fields, default_dim=HEAD_DIM)
    full, sliding = read_ropes(fields, default_theta=1_000_000.0, local_theta=_LOCAL_THETA)
    return ModelSpec(
        architecture="gemma3",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        vocab_size=fields.integer("vocab_size"),
        max_position=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        layers=read_layers(fields, full, sliding, default_pattern=_PATTERN),
        attention_scale=fields.number("query_pre_attn_scalar", HEAD_DIM) ** -0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        activation=fields.choice("hidden_activation", {"gelu_pytorch_tanh": "gelu_tanh"}, "gelu_pytorch_tanh"),
        norm_place=NormPlace.AROUND,
        norm_plus_one=True,
        qk_norm=QKNorm.HEAD,
        embedding_scale=hidden_size**0.5,
    )


GEMMA3 = Family(
    "gemma3",
    architectures=("Gemma3ForCausalLM", "gemma3_text"),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | QK_NORMS | GATED_MLP | NORMS_AROUND),
    gguf_architectures=("gemma3",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_QK_NORMS, GGUF_GATED_MLP, GGUF_NORMS_AROUND),
    complete_gguf=partial(with_scale_dim, largest_layers=62),
)
