"""Granite 3 with experts (2024): a Granite whose MLPs are mixtures, stored as one stack of gates and ups."""

from __future__ import annotations

from dataclasses import replace

from models.families.experts import GGUF_EXPERTS, all_sparse, each_expert, gate_and_up, read_experts
from models.families.family import Family
from models.families.granite import read_granite
from models.families.names import (
    ATTENTION,
    GGUF_ATTENTION,
    GGUF_NORMS_BEFORE,
    NORMS_BEFORE,
    TOP,
    gguf_names,
    interleaved_key,
    interleaved_query,
)
from models.fields import Fields
from models.spec import ModelSpec
from models.tensor_names import Cut, TensorNames

_EXPERTS: dict[str, str | Cut] = {
    "block_sparse_moe.router.layer": "mlp.router",
    "block_sparse_moe.input_linear.weight": gate_and_up,
    "block_sparse_moe.output_linear": each_expert("down_proj"),
}


def _read(fields: Fields) -> ModelSpec:
    spec = all_sparse(read_granite(fields.without("num_local_experts")))
    return replace(spec, experts=read_experts(fields, spec.intermediate_size, is_normalised=True))


GRANITE_MOE = Family(
    "granite_moe",
    architectures=("GraniteMoeForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | _EXPERTS | NORMS_BEFORE),
    gguf_architectures=("granitemoe",),
    gguf_names=gguf_names(
        GGUF_ATTENTION, GGUF_EXPERTS, GGUF_NORMS_BEFORE, {"attn_q": interleaved_query, "attn_k": interleaved_key}
    ),
)
