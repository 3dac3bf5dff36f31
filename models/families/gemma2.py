"""Gemma 2 text models: norms around each branch, capped scores and logits, sliding and full layers in turn.

Source: Gemma 2 technical report (2024).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from models.families.family import Family
from models.families.gemma import HEAD_DIM, read_gemma, with_scale_dim
from models.families.layers import read_layers
from models.families.names import (
    ATTENTION,
    GATED_MLP,
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_AROUND,
    NORMS_AROUND,
    TOP,
    gguf_names,
)
from models.families.rope import read_ropes
from models.fields import Fields
from models.spec import ModelSpec, NormPlace
from models.tensor_names import TensorNames

_PATTERN = 2  # a sliding layer, then one that sees everything
_WINDOW = 4096
_ATTENTION_SOFTCAP = 50.0
_LOGIT_SOFTCAP = 30.0


def _read(fields: Fields) -> ModelSpec:
    full, sliding = read_ropes(fields)
    return replace(
        read_gemma(fields),
        layers=read_layers(fields, full, sliding, default_pattern=_PATTERN, default_window=_WINDOW),
        attention_scale=fields.number("query_pre_attn_scalar", HEAD_DIM) ** -0.5,
        attention_softcap=_softcap(fields, "attn_logit_softcapping", _ATTENTION_SOFTCAP),
        logit_softcap=_softcap(fields, "final_logit_softcapping", _LOGIT_SOFTCAP),
        norm_place=NormPlace.AROUND,
    )


def _softcap(fields: Fields, key: str, default: float) -> float | None:
    """Null is no cap, where a missing key is the usual one."""
    return fields.optional_number(key) if fields.has(key) else default


GEMMA2 = Family(
    "gemma2",
    architectures=("Gemma2ForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | GATED_MLP | NORMS_AROUND),
    gguf_architectures=("gemma2",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_GATED_MLP, GGUF_NORMS_AROUND),
    complete_gguf=partial(with_scale_dim, largest_layers=46),
)
