"""Qwen 2 with experts (2024): a Qwen 2 with mixtures, beside an expert that every token goes to."""

from __future__ import annotations

from dataclasses import replace

from models.families.experts import EXPERTS, PROJECTIONS, read_experts, with_sparse_steps
from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import ATTENTION, GATED_MLP, NORMS_BEFORE, TOP
from models.fields import Fields
from models.spec import ModelSpec
from models.tensor_names import TensorNames

_SHARED = {f"mlp.shared_expert.{name}": f"mlp.shared_expert.{name}" for name in PROJECTIONS}
_SHARED_GATE = {"mlp.shared_expert_gate": "mlp.shared_expert_gate"}


def _read(fields: Fields) -> ModelSpec:
    fields.refuse_unless("use_sliding_window", False)
    spec = read_llama(fields.without("sliding_window", "num_local_experts", "attention_bias", "attention_output_bias"))
    experts = read_experts(
        fields, fields.integer("moe_intermediate_size"), is_normalised=fields.flag("norm_topk_prob", default=False)
    )
    shared = fields.integer("shared_expert_intermediate_size")
    return replace(
        with_sparse_steps(spec, fields),
        qkv_bias=fields.flag("qkv_bias", default=True),
        experts=replace(experts, shared_size=shared),
    )


QWEN2_MOE = Family(
    "qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | GATED_MLP | EXPERTS | _SHARED | _SHARED_GATE | NORMS_BEFORE),
)
