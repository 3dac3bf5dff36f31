"""Gemma (2024): a Llama with wide heads, scaled embeddings, and norms that are stored less one."""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family, Values
from models.families.heads import read_heads
from models.families.llama import read_llama
from models.families.names import GGUF_ATTENTION, GGUF_GATED_MLP, GGUF_NORMS_BEFORE, LLAMA_NAMES, gguf_names
from models.fields import Fields
from models.spec import ModelSpec

HEAD_DIM = 256
# what the first configs call "gelu" was the approximation by tanh in training
ACTIVATIONS = {"gelu": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def read_gemma(fields: Fields) -> ModelSpec:
    """A Gemma; its successor changes what differs."""
    fields.refuse_unless("use_bidirectional_attention", False)
    key = "hidden_act" if fields.get("hidden_activation") is None else "hidden_activation"
    heads = read_heads(fields, default_dim=HEAD_DIM)
    return replace(
        read_llama(fields.without("hidden_act", "sliding_window")),
        head_dim=heads.dim,
        attention_scale=heads.dim**-0.5,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        activation=fields.choice(key, ACTIVATIONS, "gelu_pytorch_tanh"),
        norm_plus_one=True,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
    )


def with_scale_dim(values: Values, largest_layers: int) -> Values:
    """In the largest model scores are not scaled by head_dim; its depth tells it, as in llama.cpp."""
    hidden_size, heads = values.get("hidden_size"), values.get("num_attention_heads")
    scale_dim = values.get("head_dim") or HEAD_DIM
    if values.get("num_hidden_layers") == largest_layers and isinstance(hidden_size, int) and isinstance(heads, int):
        scale_dim = hidden_size // heads
    return values | {"query_pre_attn_scalar": scale_dim}


GEMMA = Family(
    "gemma",
    architectures=("GemmaForCausalLM",),
    read=read_gemma,
    names=LLAMA_NAMES,
    gguf_architectures=("gemma",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_GATED_MLP, GGUF_NORMS_BEFORE),
)
