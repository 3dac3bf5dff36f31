"""The description of a GGUF file under the keys of ``config.json``, so that a family is read in one way.

Knows llama.cpp's keys and the tensors that say what no key says; no family. Imports no torch.
"""

from __future__ import annotations

from gguf.constants import GGMLQuantizationType

from models.errors import CheckpointError
from models.fields import Fields
from models.gguf_end_tokens import turn_ends
from models.gguf_file import GGUFFile, GGUFTensor
from models.gguf_rope import gguf_rope_scaling

_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
    "clip_qkv": "attention.clamp_kqv",
    "use_parallel_residual": "use_parallel_residual",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_SCALING = "rope_scaling"
_STORED_DTYPES = {GGMLQuantizationType.BF16: "bfloat16", GGMLQuantizationType.F16: "float16"}


def gguf_values(file: GGUFFile) -> dict[str, object]:
    """What the file says of its model. Raises CheckpointError for what no model served here has."""
    prefix = f"{file.metadata['general.architecture']}."
    values = {key: file.metadata[prefix + name] for key, name in _KEYS.items() if prefix + name in file.metadata}
    embedding = _tensor(file, "token_embd.weight")
    projection = _tensor(file, "blk.0.attn_q.weight", "blk.0.attn_qkv.weight")
    values["vocab_size"] = embedding.shape[0]
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    values["attention_bias"] = "blk.0.attn_q.bias" in file.tensors or "blk.0.attn_qkv.bias" in file.tensors
    values["attention_output_bias"] = "blk.0.attn_output.bias" in file.tensors
    values["mlp_bias"] = "blk.0.ffn_down.bias" in file.tensors
    values["layer_tensors"] = [name.removeprefix("blk.0.") for name in file.tensors if name.startswith("blk.0.")]
    values["dtype"] = _STORED_DTYPES.get(projection.quantization, "float32")
    values[_SCALING] = gguf_rope_scaling(file, prefix)
    if values.get("sliding_window") == 0:  # how Phi 4 says that it has none
        del values["sliding_window"]
    if (rotary_dim := file.metadata.get(f"{prefix}rope.dimension_count")) is not None:
        values["rotary_dim"] = rotary_dim
    tokenizer = Fields(file.metadata, str(file.path))
    ids = {kind: tokenizer.token_ids(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "eot")}
    values["bos_token_id"] = list(ids["bos"])
    values["eos_token_id"] = [*ids["eos"], *(ids["eot"] or turn_ends(file.metadata))]
    return values


def gguf_fields(file: GGUFFile, values: dict[str, object]) -> Fields:
    """``values`` as fields, whose errors name the file's own keys."""
    prefix = f"{file.metadata['general.architecture']}."
    names = {key: prefix + name for key, name in _KEYS.items()} | {_SCALING: f"{prefix}rope.scaling.type"}
    fields = Fields(values, str(file.path), names, is_gguf=True)
    head_dim = values.get("head_dim")
    if head_dim is not None and file.metadata.get(f"{prefix}attention.value_length", head_dim) != head_dim:
        raise fields.error("head_dim", f"is {head_dim} and that of values another, which is not supported")
    return fields


def _tensor(file: GGUFFile, *names: str) -> GGUFTensor:
    for name in names:
        if name in file.tensors:
            return file.tensors[name]
    raise CheckpointError(f"{file.path}: the tensor {names[0]!r} is missing")
