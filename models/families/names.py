"""Names of tensors that many families share: those of Llama's Hugging Face files, and those of GGUF files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from models.spec import ModelSpec
from models.tensor_names import Cut, Placement, TensorNames

TOP = {"model.embed_tokens": "model.embed_tokens", "model.norm": "model.norm", "lm_head": "lm_head"}
ATTENTION = {f"self_attn.{name}": f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
QK_NORMS = {f"self_attn.{name}": f"self_attn.{name}" for name in ("q_norm", "k_norm")}
GATED_MLP = {f"mlp.{name}": f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")}
NORMS_BEFORE = {name: name for name in ("input_layernorm", "post_attention_layernorm")}
NORMS_AFTER = {name: name for name in ("post_attention_layernorm", "post_feedforward_layernorm")}
NORMS_AROUND = {
    name: name
    for name in (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
}
LLAMA_NAMES = TensorNames("model.layers.", TOP, ATTENTION | GATED_MLP | NORMS_BEFORE)

GGUF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GGUF_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
GGUF_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GGUF_GATED_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GGUF_PLAIN_MLP = {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GGUF_NORMS_BEFORE = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
GGUF_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
GGUF_NORMS_AROUND = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GGUF_IGNORED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def gguf_names(*layers: Mapping[str, str | Cut]) -> TensorNames:
    """Names of a GGUF file whose layers have the tensors of all ``layers``."""
    layer: dict[str, str | Cut] = {}
    for some in layers:
        layer |= some
    return TensorNames("blk.", GGUF_TOP, layer, ignored=GGUF_IGNORED)


def grouped_qkv(spec: ModelSpec) -> Iterator[Placement]:
    """One tensor whose rows are, for each key head, its query heads, the key head itself and its value head."""
    group = spec.num_q_heads // spec.num_kv_heads
    heads = np.arange(spec.num_kv_heads * (group + 2) * spec.head_dim).reshape(spec.num_kv_heads, group + 2, -1)
    yield Placement("self_attn.q_proj", rows=heads[:, :group].reshape(-1))
    yield Placement("self_attn.k_proj", rows=heads[:, group].reshape(-1))
    yield Placement("self_attn.v_proj", rows=heads[:, group + 1].reshape(-1))


def stacked_qkv(spec: ModelSpec) -> Iterator[Placement]:
    """One tensor of all query rows, then all key rows, then all value rows."""
    start = 0
    for name, heads in (("q", spec.num_q_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
        yield Placement(f"self_attn.{name}_proj", rows=slice(start, start + heads * spec.head_dim))
        start += heads * spec.head_dim


def heads_in_halves(name: str, num_heads: int, head_dim: int) -> Placement:
    """Query or key rows of a file that rotates neighbours: llama.cpp interleaves the halves of each Llama head."""
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return Placement(name, rows=rows)


def interleaved_query(spec: ModelSpec) -> Iterator[Placement]:
    yield heads_in_halves("self_attn.q_proj", spec.num_q_heads, spec.head_dim)


def interleaved_key(spec: ModelSpec) -> Iterator[Placement]:
    yield heads_in_halves("self_attn.k_proj", spec.num_kv_heads, spec.head_dim)
