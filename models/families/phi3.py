"""Phi 3, 3.5, 4 and Phi-4-mini (Microsoft, 2024): a Llama whose files hold several matrices in one tensor.

Phi-4-mini turns three quarters of each head only. Their long variants have LongRoPE, under three names.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import GGUF_NORMS_BEFORE, NORMS_BEFORE, TOP, gguf_names, stacked_qkv
from models.fields import Fields
from models.spec import ModelSpec
from models.tensor_names import Placement, TensorNames


def _read(fields: Fields) -> ModelSpec:
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.refuse_unless(key, False)
    for key in ("full_attn_mod", "interpolate_factor"):
        fields.refuse_unless(key, 1)
    return read_llama(fields, rope_aliases={"su": "longrope", "yarn": "longrope"})


def _halves(spec: ModelSpec) -> Iterator[Placement]:
    yield Placement("mlp.gate_proj", rows=slice(spec.intermediate_size))
    yield Placement("mlp.up_proj", rows=slice(spec.intermediate_size, 2 * spec.intermediate_size))


PHI3 = Family(
    "phi3",
    architectures=("Phi3ForCausalLM", "phi3"),
    read=_read,
    names=TensorNames(
        "model.layers.",
        TOP,
        NORMS_BEFORE
        | {
            "self_attn.qkv_proj": stacked_qkv,
            "self_attn.o_proj": "self_attn.o_proj",
            "mlp.gate_up_proj": _halves,
            "mlp.down_proj": "mlp.down_proj",
        },
    ),
    gguf_architectures=("phi3",),
    gguf_names=gguf_names(
        GGUF_NORMS_BEFORE,
        {"attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj"},
        {"attn_qkv": stacked_qkv, "ffn_up": _halves},
    ),
)
