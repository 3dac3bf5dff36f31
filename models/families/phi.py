"""Phi 1, 1.5 and 2 (Microsoft, 2023): LayerNorm, branches side by side behind one norm, biases everywhere."""

from __future__ import annotations

from models.families.activations import GELUS
from models.families.family import Family
from models.families.heads import read_heads
from models.families.names import GGUF_ATTENTION, GGUF_PLAIN_MLP, gguf_names, stacked_qkv
from models.families.rope import longest_length, read_rope
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec, NormKind, Parallel
from models.tensor_names import TensorNames

_ROTARY_PART = 0.5


def _read(fields: Fields) -> ModelSpec:
    fields.refuse_unless("qk_layernorm", False)
    heads = read_heads(fields)
    rope = read_rope(fields, head_dim=heads.dim, default_part=_ROTARY_PART)
    return ModelSpec(
        architecture="phi",
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        vocab_size=fields.integer("vocab_size"),
        max_position=longest_length(fields, rope),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        layers=(LayerSpec(None, rope),) * fields.layer_count(),
        attention_scale=heads.dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        activation=fields.choice("hidden_act", GELUS, "gelu_new"),
        norm=NormKind.LAYER,
        parallel=Parallel.ONE_NORM,
        gated_mlp=False,
        mlp_bias=True,
        qkv_bias=True,
        output_bias=True,
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
