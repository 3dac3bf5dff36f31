"""GPT-NeoX (Black et al., 2022), Pythia: LayerNorm, branches side by side, heads that turn in part."""

from __future__ import annotations

from models.families.activations import GELUS
from models.families.family import Family
from models.families.heads import read_heads
from models.families.names import GGUF_NORMS_BEFORE, GGUF_PLAIN_MLP, gguf_names, grouped_qkv, stacked_qkv
from models.families.rope import longest_length, read_rope
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec, NormKind, Parallel
from models.tensor_names import TensorNames

_CONFIG_NAMES = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
_ROTARY_PART = 0.25


def _read(fields: Fields) -> ModelSpec:
    fields = fields.renamed(_CONFIG_NAMES)
    heads = read_heads(fields.without("head_dim", "num_key_value_heads"))
    rope = read_rope(fields, head_dim=heads.dim, default_part=_ROTARY_PART)
    has_bias = fields.flag("attention_bias", default=True)
    return ModelSpec(
        architecture="gpt_neox",
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
        activation=fields.choice("hidden_act", GELUS, "gelu"),
        norm=NormKind.LAYER,
        parallel=Parallel.TWO_NORMS if fields.flag("use_parallel_residual", default=True) else Parallel.NO,
        gated_mlp=False,
        mlp_bias=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
    )


GPT_NEOX = Family(
    "gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    read=_read,
    names=TensorNames(
        "gpt_neox.layers.",
        {"gpt_neox.embed_in": "model.embed_tokens", "gpt_neox.final_layer_norm": "model.norm", "embed_out": "lm_head"},
        {
            "input_layernorm": "input_layernorm",
            "post_attention_layernorm": "post_attention_layernorm",
            "attention.query_key_value": grouped_qkv,
            "attention.dense": "self_attn.o_proj",
            "mlp.dense_h_to_4h": "mlp.up_proj",
            "mlp.dense_4h_to_h": "mlp.down_proj",
        },
        ignored=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    ),
    gguf_architectures=("gptneox",),
    gguf_names=gguf_names(
        GGUF_NORMS_BEFORE, GGUF_PLAIN_MLP, {"attn_qkv": stacked_qkv, "attn_output": "self_attn.o_proj"}
    ),
)
