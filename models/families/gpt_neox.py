"""GPT-NeoX (Black et al., 2022), Pythia: LayerNorm, branches side by side, heads that turn in part."""

from __future__ import annotations

from models.families.family import Family
from models.families.heads import read_heads
from models.families.layer_norm import read_layer_norm_spec
from models.families.names import GGUF_NORMS_BEFORE, GGUF_PLAIN_MLP, gguf_names, grouped_qkv, stacked_qkv
from models.fields import Fields
from models.spec import ModelSpec, Parallel
from models.tensor_names import TensorNames

_CONFIG_NAMES = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def _read(fields: Fields) -> ModelSpec:
    fields = fields.renamed(_CONFIG_NAMES)
    heads = read_heads(fields.without("head_dim", "num_key_value_heads"))
    return read_layer_norm_spec(
        fields,
        "gpt_neox",
        heads,
        rotary_part=0.25,
        activation="gelu",
        parallel=Parallel.TWO_NORMS if fields.flag("use_parallel_residual", default=True) else Parallel.NO,
        attention_bias=fields.flag("attention_bias", default=True),
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
