"""OLMo (Groeneveld et al., 2024): a Llama whose norms have no weights, and whose projections may be cut off."""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import (
    ATTENTION,
    GATED_MLP,
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    TOP,
    gguf_names,
    interleaved_key,
    interleaved_query,
)
from models.fields import Fields
from models.spec import ModelSpec, NormKind
from models.tensor_names import TensorNames

_NORM_EPS = 1e-5


def _read(fields: Fields) -> ModelSpec:
    return replace(
        read_llama(fields.without("sliding_window")),
        norm=NormKind.BARE_LAYER,
        norm_eps=_NORM_EPS,
        qkv_limit=fields.optional_number("clip_qkv"),
    )


OLMO = Family(
    "olmo",
    architectures=("OlmoForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | GATED_MLP),
    gguf_architectures=("olmo",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_GATED_MLP, {"attn_q": interleaved_query, "attn_k": interleaved_key}),
)
