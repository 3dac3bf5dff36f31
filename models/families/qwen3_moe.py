"""Qwen 3 with experts (2025): layers are mixtures but for those that its config names, or leaves out by their step."""

from __future__ import annotations

from dataclasses import replace

from models.families.experts import EXPERTS, GGUF_EXPERTS, read_experts, with_sparse_steps
from models.families.family import Family, Values
from models.families.llama import read_llama
from models.families.names import (
    ATTENTION,
    GATED_MLP,
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_BEFORE,
    GGUF_QK_NORMS,
    NORMS_BEFORE,
    QK_NORMS,
    TOP,
    gguf_names,
)
from models.fields import Fields
from models.spec import ModelSpec, QKNorm
from models.tensor_names import TensorNames


def _read(fields: Fields) -> ModelSpec:
    fields.refuse_unless("use_sliding_window", False)
    spec = read_llama(fields.without("sliding_window", "num_local_experts"))
    return replace(
        with_sparse_steps(spec, fields),
        qk_norm=QKNorm.HEAD,
        experts=read_experts(
            fields, fields.integer("moe_intermediate_size"), is_normalised=fields.flag("norm_topk_prob", default=False)
        ),
    )


def _complete_gguf(values: Values) -> Values:
    """Such files leave it to llama.cpp to normalise."""
    return values | {"norm_topk_prob": True}


QWEN3_MOE = Family(
    "qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | QK_NORMS | GATED_MLP | EXPERTS | NORMS_BEFORE),
    gguf_architectures=("qwen3moe",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_QK_NORMS, GGUF_GATED_MLP, GGUF_EXPERTS, GGUF_NORMS_BEFORE),
    complete_gguf=_complete_gguf,
)
