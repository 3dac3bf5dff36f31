"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases everywhere, an MLP without a gate.

Its ``config.json`` has names of its own, and its weights are stored with columns first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from models.families.activations import GELUS
from models.families.family import Family
from models.families.heads import read_heads
from models.families.names import GGUF_IGNORED, GGUF_NORMS_BEFORE, GGUF_PLAIN_MLP, GGUF_TOP, stacked_qkv
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec, NormKind
from models.tensor_names import Cut, Placement, TensorNames

_CONFIG_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def _read(fields: Fields) -> ModelSpec:
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        fields.refuse_unless(key, False)
    fields = fields.renamed(_CONFIG_NAMES)
    hidden_size = fields.integer("hidden_size")
    heads = read_heads(fields.without("head_dim", "num_key_value_heads"))
    is_scaled = fields.flag("scale_attn_weights", default=True)
    return ModelSpec(
        architecture="gpt2",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 4 * hidden_size),
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        vocab_size=fields.integer("vocab_size"),
        max_position=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        layers=(LayerSpec(None, None),) * fields.layer_count(),
        attention_scale=heads.dim**-0.5 if is_scaled else 1.0,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        activation=fields.choice("hidden_act", GELUS, "gelu_new"),
        norm=NormKind.LAYER,
        gated_mlp=False,
        mlp_bias=True,
        qkv_bias=True,
        output_bias=True,
        learned_positions=True,
    )


def _transposed(name: str) -> Cut:
    def cut(spec: ModelSpec) -> Iterator[Placement]:
        yield Placement(name, is_transposed=True)

    return cut


def _transposed_qkv(spec: ModelSpec) -> Iterator[Placement]:
    for part in stacked_qkv(spec):
        yield replace(part, is_transposed=True)


GPT2 = Family(
    "gpt2",
    architectures=("GPT2LMHeadModel",),
    read=_read,
    names=TensorNames(
        "h.",
        {
            "wte": "model.embed_tokens",
            "wpe": "model.embed_positions",
            "ln_f": "model.norm",
            "lm_head": "lm_head",
        },
        {
            "ln_1": "input_layernorm",
            "ln_2": "post_attention_layernorm",
            "attn.c_attn": _transposed_qkv,
            "attn.c_proj": _transposed("self_attn.o_proj"),
            "mlp.c_fc": _transposed("mlp.up_proj"),
            "mlp.c_proj": _transposed("mlp.down_proj"),
        },
        ignored=(".attn.bias", ".attn.masked_bias"),
        root="transformer.",
    ),
    gguf_architectures=("gpt2",),
    gguf_names=TensorNames(
        "blk.",
        GGUF_TOP | {"position_embd": "model.embed_positions"},
        GGUF_NORMS_BEFORE | GGUF_PLAIN_MLP | {"attn_qkv": stacked_qkv, "attn_output": "self_attn.o_proj"},
        ignored=GGUF_IGNORED,
    ),
)
