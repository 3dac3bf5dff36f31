"""StableLM (2023, 2024): a Llama with LayerNorm and heads that turn in part; its branches may lie side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from models.families.family import Family, Values
from models.families.heads import read_heads
from models.families.llama import read_llama
from models.families.names import (
    ATTENTION,
    GATED_MLP,
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_BEFORE,
    NORMS_BEFORE,
    TOP,
    gguf_names,
)
from models.families.rope import read_rope
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec, NormKind, Parallel, QKNorm
from models.tensor_names import Cut, Placement, TensorNames

_ROTARY_PART = 0.25


def _read(fields: Fields) -> ModelSpec:
    has_qk_norm = fields.flag("qk_layernorm", default=False)
    heads = read_heads(fields)
    rope = read_rope(fields, head_dim=heads.dim, default_part=_ROTARY_PART)
    return replace(
        read_llama(fields.without("sliding_window", "attention_bias")),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        layers=(LayerSpec(None, rope),) * fields.layer_count(),
        norm=NormKind.LAYER,
        parallel=Parallel.ONE_NORM if fields.flag("use_parallel_residual", default=False) else Parallel.NO,
        qkv_bias=fields.flag("use_qkv_bias", default=False),
        output_bias=False,
        qk_norm=QKNorm.LAYER_OF_EACH_HEAD if has_qk_norm else QKNorm.NONE,
    )


def _complete_gguf(values: Values) -> Values:
    """Branches that lie side by side have one norm, whatever a key says."""
    tensors = values.get("layer_tensors")
    assert isinstance(tensors, list)
    return values | {
        "use_qkv_bias": values.get("attention_bias"),
        "use_parallel_residual": "ffn_norm.weight" not in tensors,
        "qk_layernorm": "attn_q_norm.weight" in tensors,
    }


def _stacked_norms(name: str) -> Cut:
    """One tensor for all heads."""

    def cut(spec: ModelSpec) -> Iterator[Placement]:
        for head in range(spec.num_q_heads if name == "q_norm" else spec.num_kv_heads):
            yield Placement(f"self_attn.{name}.{head}", expert=head)

    return cut


STABLELM = Family(
    "stablelm",
    architectures=("StableLmForCausalLM",),
    read=_read,
    names=TensorNames(
        "model.layers.",
        TOP,
        {
            **ATTENTION,
            **GATED_MLP,
            **NORMS_BEFORE,
            "self_attn.q_layernorm.norms.*.weight": "self_attn.q_norm.*.weight",
            "self_attn.k_layernorm.norms.*.weight": "self_attn.k_norm.*.weight",
        },
    ),
    gguf_architectures=("stablelm",),
    gguf_names=gguf_names(
        GGUF_ATTENTION,
        GGUF_GATED_MLP,
        GGUF_NORMS_BEFORE,
        {"attn_q_norm": _stacked_norms("q_norm"), "attn_k_norm": _stacked_norms("k_norm")},
    ),
    complete_gguf=_complete_gguf,
)
