"""Phi 1, 1.5 and 2 (Microsoft, 2023): LayerNorm, branches side by side behind one norm, biases everywhere."""

from __future__ import annotations

from models.families.family import Family
from models.families.heads import read_heads
from models.families.layer_norm import read_layer_norm_spec
from models.families.names import GGUF_ATTENTION, GGUF_PLAIN_MLP, gguf_names, stacked_qkv
from models.fields import Fields
from models.spec import ModelSpec, Parallel
from models.tensor_names import TensorNames


def _read(fields: Fields) -> ModelSpec:
    fields.refuse_unless("qk_layernorm", False)
    return read_layer_norm_spec(
        fields,
        "phi",
        read_heads(fields),
        rotary_part=0.5,
        activation="gelu_new",
        parallel=Parallel.ONE_NORM,
        attention_bias=True,
        head_bias=True,
    )


PHI = Family(
    "phi",
    architectures=("PhiForCausalLM", "phi"),
    read=_read,
    names=TensorNames(
        "model.layers.",
        {
            "model.embed_tokens": "model.embed_tokens",
            "model.final_layernorm": "model.norm",
            "lm_head": "lm_head",
        },
        {
            "input_layernorm": "input_layernorm",
            **{f"self_attn.{name}": f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")},
            "self_attn.dense": "self_attn.o_proj",
            "mlp.fc1": "mlp.up_proj",
            "mlp.fc2": "mlp.down_proj",
        },
    ),
    gguf_architectures=("phi2",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_PLAIN_MLP, {"attn_norm": "input_layernorm", "attn_qkv": stacked_qkv}),
)
