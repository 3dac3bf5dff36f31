"""Gemma 3 text models: norms around each branch, QK-norm, five sliding layers to a full one.

Source: Gemma 3 technical report (2025).
"""

from __future__ import annotations

from models.families.family import Family, Values
from models.families.heads import read_heads
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
from models.families.rope import read_rope, scaled_rope
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec, NormPlace, QKNorm, RopeSpec
from models.tensor_names import TensorNames

_PATTERN = 6  # five sliding layers, then one that sees everything
_LOCAL_THETA = 10_000.0
_HEAD_DIM = 256
_LARGEST_LAYERS = 62


def _read(fields: Fields) -> ModelSpec:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse_unless(key, 0.0)
    for key in ("attention_bias", "use_bidirectional_attention"):
        fields.refuse_unless(key, False)
    hidden_size = fields.integer("hidden_size")
    fields.integer("num_key_value_heads")
    heads = read_heads(fields, default_dim=_HEAD_DIM)
    full, sliding = _ropes(fields)
    window = fields.integer("sliding_window")
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
        layers=tuple(
            LayerSpec(window, sliding) if kind == "sliding_attention" else LayerSpec(None, full)
            for kind in _layer_kinds(fields)
        ),
        attention_scale=fields.number("query_pre_attn_scalar", _HEAD_DIM) ** -0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        activation=fields.choice("hidden_activation", {"gelu_pytorch_tanh": "gelu_tanh"}, "gelu_pytorch_tanh"),
        norm_place=NormPlace.AROUND,
        norm_plus_one=True,
        qk_norm=QKNorm.HEAD,
        embedding_scale=hidden_size**0.5,
    )


def _layer_kinds(fields: Fields) -> list[str]:
    kinds = fields.layer_kinds("layer_types", ("sliding_attention", "full_attention"))
    if kinds is not None:
        return kinds
    pattern = fields.integer("sliding_window_pattern", _PATTERN)
    return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(fields.layer_count())]


def _ropes(fields: Fields) -> tuple[RopeSpec, RopeSpec]:
    """(full, sliding). Only full layers are ever scaled, unless each kind has its own description."""
    theta = fields.number("rope_theta", 1_000_000.0)
    local_theta = fields.number("rope_local_base_freq", _LOCAL_THETA)
    parameters = fields.part("rope_parameters")
    if parameters is not None and (parameters.get("full_attention") or parameters.get("sliding_attention")):
        full = scaled_rope(fields, theta, parameters.part("full_attention"))
        return full, scaled_rope(fields, local_theta, parameters.part("sliding_attention"))
    return read_rope(fields, default_theta=1_000_000.0), RopeSpec(local_theta)


def _complete_gguf(values: Values) -> Values:
    """The largest Gemma 3 is the one whose scores are not scaled by head_dim; its depth tells it, as in llama.cpp."""
    hidden_size, heads = values.get("hidden_size"), values.get("num_attention_heads")
    scale_dim = values.get("head_dim") or _HEAD_DIM
    if values.get("num_hidden_layers") == _LARGEST_LAYERS and isinstance(hidden_size, int) and isinstance(heads, int):
        scale_dim = hidden_size // heads
    return values | {"query_pre_attn_scalar": scale_dim}


GEMMA3 = Family(
    "gemma3",
    architectures=("Gemma3ForCausalLM", "gemma3_text"),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | QK_NORMS | GATED_MLP | NORMS_AROUND),
    gguf_architectures=("gemma3",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_QK_NORMS, GGUF_GATED_MLP, GGUF_NORMS_AROUND),
    complete_gguf=_complete_gguf,
)
