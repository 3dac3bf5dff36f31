"""Granite 3 (2024): a Llama with four multipliers, of embeddings, scores, branches and logits."""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import (
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_BEFORE,
    LLAMA_NAMES,
    gguf_names,
    interleaved_key,
    interleaved_query,
)
from models.fields import Fields
from models.spec import ModelSpec


def read_granite(fields: Fields) -> ModelSpec:
    """A Granite, with experts or without."""
    spec = read_llama(fields.without("sliding_window"))
    return replace(
        spec,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", spec.attention_scale if fields.is_gguf else 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0),
    )


GRANITE = Family(
    "granite",
    architectures=("GraniteForCausalLM",),
    read=read_granite,
    names=LLAMA_NAMES,
    gguf_architectures=("granite",),
    gguf_names=gguf_names(
        GGUF_ATTENTION, GGUF_GATED_MLP, GGUF_NORMS_BEFORE, {"attn_q": interleaved_query, "attn_k": interleaved_key}
    ),
)
