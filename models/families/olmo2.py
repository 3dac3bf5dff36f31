"""OLMo 2 (2024) and 3 (2025): norms of what a branch adds, queries and keys normed over all heads together.

OLMo 3 adds layers that slide over a window; GGUF files call both "olmo2".
"""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family, Values
from models.families.layers import read_layers
from models.families.llama import read_llama
from models.families.names import (
    ATTENTION,
    GATED_MLP,
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_AFTER,
    GGUF_QK_NORMS,
    NORMS_AFTER,
    QK_NORMS,
    TOP,
    gguf_names,
)
from models.families.rope import read_ropes
from models.fields import Fields
from models.spec import ModelSpec, NormPlace, QKNorm
from models.tensor_names import TensorNames

_PATTERN = 4  # three sliding layers, then one that sees everything
_OLMO3_THETA = 500_000.0


def _read(fields: Fields) -> ModelSpec:
    spec = replace(
        read_llama(fields.without("sliding_window", "rope_parameters", "rope_scaling")),
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        norm_place=NormPlace.AFTER,
        qk_norm=QKNorm.ALL_HEADS,
    )
    if fields.get("sliding_window") is None:
        return replace(spec, layers=read_llama(fields).layers)
    full, sliding = read_ropes(fields, default_theta=_OLMO3_THETA)
    return replace(spec, layers=read_layers(fields, full, sliding, default_pattern=_PATTERN))


def _complete_gguf(values: Values) -> Values:
    """Which layers slide is a list here."""
    pattern = values.get("sliding_window_pattern")
    if not isinstance(pattern, list):
        return values
    kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return values | {"layer_types": kinds, "sliding_window_pattern": None}


OLMO2 = Family(
    "olmo2",
    architectures=("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | QK_NORMS | GATED_MLP | NORMS_AFTER),
    gguf_architectures=("olmo2",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_QK_NORMS, GGUF_GATED_MLP, GGUF_NORMS_AFTER),
    complete_gguf=_complete_gguf,
)
