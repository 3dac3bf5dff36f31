"""OLMoE (Muennighoff et al., 2024): all layers are mixtures; queries and keys are normed over all heads together."""

from __future__ import annotations

from dataclasses import replace

from models.families.experts import EXPERTS, GGUF_EXPERTS, all_sparse, read_experts
from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import (
    ATTENTION,
    GGUF_ATTENTION,
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
    fields.refuse_unless("clip_qkv", 0.0)
    spec = all_sparse(read_llama(fields.without("num_local_experts")))
    return replace(
        spec,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        qk_norm=QKNorm.ALL_HEADS,
        experts=read_experts(
            fields, spec.intermediate_size, is_normalised=fields.flag("norm_topk_prob", default=False)
        ),
    )


OLMOE = Family(
    "olmoe",
    architectures=("OlmoeForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | QK_NORMS | EXPERTS | NORMS_BEFORE),
    gguf_architectures=("olmoe",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_QK_NORMS, GGUF_EXPERTS, GGUF_NORMS_BEFORE),
)
