"""Falcon (Almazrouei et al., 2023): LayerNorm, few key heads, branches side by side behind one norm or two."""

from __future__ import annotations

from collections.abc import Iterator

from models.families.activations import GELUS
from models.families.family import Family, Values
from models.families.heads import read_heads
from models.families.names import GGUF_PLAIN_MLP, gguf_names, grouped_qkv, stacked_qkv
from models.families.rope import read_rope
from models.fields import Fields
from models.spec import LayerSpec, ModelSpec, NormKind, Parallel
from models.tensor_names import Placement, TensorNames

_CONFIG_NAMES = {
    "intermediate_size": "ffn_hidden_size",
    "num_key_value_heads": "num_kv_heads",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation",
}
_MAX_POSITION = 2048  # of the first models, which do not say it


def _read(fields: Fields) -> ModelSpec:
    for key in ("alibi", "apply_residual_connection_post_layernorm"):
        fields.refuse_unless(key, False)
    fields = fields.renamed(_CONFIG_NAMES)
    hidden_size = fields.integer("hidden_size")
    is_new = fields.flag("new_decoder_architecture", default=False)
    shares_keys = not is_new and fields.flag("multi_query", default=True)
    heads = read_heads(fields.without("head_dim", *(["num_key_value_heads"] if shares_keys else [])))
    has_bias = fields.flag("bias", default=False)
    return ModelSpec(
        architecture="falcon",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 4 * hidden_size),
        num_q_heads=heads.num_q,
        num_kv_heads=1 if shares_keys else heads.num_kv,
        head_dim=heads.dim,
        vocab_size=fields.integer("vocab_size"),
        max_position=fields.integer("max_position_embeddings", _MAX_POSITION),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        layers=(LayerSpec(None, read_rope(fields)),) * fields.layer_count(),
        attention_scale=heads.dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        activation=fields.choice("hidden_act", GELUS, "gelu"),
        norm=NormKind.LAYER,
        parallel=_parallel(fields, is_new=is_new),
        gated_mlp=False,
        mlp_bias=has_bias,
        qkv_bias=has_bias,
        output_bias=has_bias,
    )


def _parallel(fields: Fields, *, is_new: bool) -> Parallel:
    """Norms of the first models are one for both branches, unless these follow each other."""
    if not is_new:
        fields.refuse_unless("num_ln_in_parallel_attn", 1)
        return Parallel.ONE_NORM if fields.flag("parallel_attn", default=True) else Parallel.NO
    fields.refuse_unless("num_ln_in_parallel_attn", 1, 2)
    return Parallel.ONE_NORM if fields.get("num_ln_in_parallel_attn") == 1 else Parallel.TWO_NORMS


def _complete_gguf(values: Values) -> Values:
    """Such files say it by their tensors."""
    tensors = values.get("layer_tensors")
    assert isinstance(tensors, list)
    return values | {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 2 if "attn_norm_2.weight" in tensors else 1,
        "bias": values.get("attention_bias"),
    }


def _gguf_norm(spec: ModelSpec) -> Iterator[Placement]:
    """Where attention has a norm of its own, which is called attn_norm_2, this one is the MLP's."""
    is_shared = spec.parallel is Parallel.ONE_NORM
    yield Placement("input_layernorm" if is_shared else "post_attention_layernorm")


FALCON = Family(
    "falcon",
    architectures=("FalconForCausalLM",),
    read=_read,
    names=TensorNames(
        "transformer.h.",
        {
            "transformer.word_embeddings": "model.embed_tokens",
            "transformer.ln_f": "model.norm",
            "lm_head": "lm_head",
        },
        {
            "input_layernorm": "input_layernorm",
            "post_attention_layernorm": "post_attention_layernorm",
            "ln_attn": "input_layernorm",
            "ln_mlp": "post_attention_layernorm",
            "self_attention.query_key_value": grouped_qkv,
            "self_attention.dense": "self_attn.o_proj",
            "mlp.dense_h_to_4h": "mlp.up_proj",
            "mlp.dense_4h_to_h": "mlp.down_proj",
        },
    ),
    gguf_architectures=("falcon",),
    gguf_names=gguf_names(
        GGUF_PLAIN_MLP,
        {
            "attn_norm": _gguf_norm,
            "attn_norm_2": "input_layernorm",
            "attn_qkv": stacked_qkv,
            "attn_output": "self_attn.o_proj",
        },
    ),
    complete_gguf=_complete_gguf,
)
