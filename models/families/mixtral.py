"""Mixtral (Jiang et al., 2024): a Mistral whose MLPs are mixtures of experts. Its GGUF files call it "llama"."""

from __future__ import annotations

from dataclasses import replace

from models.families.experts import GGUF_EXPERTS, all_sparse, each_expert, gate_and_up, read_experts
from models.families.family import Family, Values
from models.families.llama import read_llama
from models.families.names import (
    ATTENTION,
    GGUF_ATTENTION,
    GGUF_IGNORED,
    GGUF_NORMS_BEFORE,
    GGUF_TOP,
    NORMS_BEFORE,
    TOP,
    interleaved_key,
    interleaved_query,
)
from models.fields import Fields
from models.spec import ModelSpec
from models.tensor_names import Cut, TensorNames

_EXPERTS: dict[str, str | Cut] = {
    "block_sparse_moe.gate": "mlp.router",
    "block_sparse_moe.experts.*.w1": "mlp.experts.*.gate_proj",
    "block_sparse_moe.experts.*.w2": "mlp.experts.*.down_proj",
    "block_sparse_moe.experts.*.w3": "mlp.experts.*.up_proj",
    "mlp.gate": "mlp.router",
    "mlp.experts.gate_up_proj": gate_and_up,
    "mlp.experts.down_proj": each_expert("down_proj.weight"),
}
_OLD_GGUF_EXPERTS = {
    f"ffn_{name}.*.weight": f"mlp.experts.*.{name}_proj.weight" for name in ("gate", "up", "down")
}  # of files from before stacks


def _read(fields: Fields) -> ModelSpec:
    spec = all_sparse(read_llama(fields.without("num_local_experts")))
    return replace(
        spec,
        experts=read_experts(fields, spec.intermediate_size, is_normalised=True),
    )


def has_experts(values: Values) -> bool:
    """Whether a GGUF file describes a mixture."""
    return bool(values.get("num_local_experts"))


MIXTRAL = Family(
    "mixtral",
    architectures=("MixtralForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | _EXPERTS | NORMS_BEFORE),
    gguf_architectures=("llama",),
    gguf_names=TensorNames(
        "blk.",
        GGUF_TOP,
        GGUF_ATTENTION
        | GGUF_NORMS_BEFORE
        | GGUF_EXPERTS
        | _OLD_GGUF_EXPERTS
        | {"attn_q": interleaved_query, "attn_k": interleaved_key},
        ignored=GGUF_IGNORED,
    ),
    takes_gguf=has_experts,
)
