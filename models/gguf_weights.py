"""Tensors of a GGUF file as a decoder's parameters: their names, the order of their rows, their values.

Knows llama.cpp's conventions for the architectures served here; places nothing and allocates one chunk at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from kernels.cpu.quantised_matrix import PANEL_ROWS
from models.errors import CheckpointError
from models.gguf_file import GGUFTensor
from models.spec import ModelSpec

_CHUNK_ELEMENTS = 1 << 18  # 1 MiB of float32: stays in a core's second-level cache

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_OF_ARCHITECTURE = {
    "llama": {"ffn_norm": "post_attention_layernorm"},
    "gemma3": {
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}


def parameter_name(architecture: str, name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None for one that holds no weight of ``architecture``."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    prefix, _, rest = stem.partition(".")
    index, _, part = rest.partition(".")
    layer = {**_LAYER, **_LAYER_OF_ARCHITECTURE[architecture]}
    if prefix == "blk" and part in layer:
        return f"model.layers.{index}.{layer[part]}.{kind}"
    return None


def rows_in_order(tensor: GGUFTensor, name: str, spec: ModelSpec) -> npt.NDArray[np.uint8]:
    """The tensor's raw rows, with query and key rows of Llama back in the order that Hugging Face uses.

    llama.cpp rotates neighbouring elements of a Llama head, so its files interleave the halves of each head.
    """
    heads = {"q_proj": spec.num_q_heads, "k_proj": spec.num_kv_heads}.get(name.split(".")[-2])
    if spec.architecture != "llama" or heads is None:
        return tensor.data
    pairs = tensor.data.reshape(heads, spec.head_dim // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(tensor.data.shape)


def row_chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the first dimension that hold about `_CHUNK_ELEMENTS` each, and begin at whole panels."""
    step = max(1, _CHUNK_ELEMENTS // math.prod(shape[1:]) // PANEL_ROWS) * PANEL_ROWS
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def dequantized(rows: npt.NDArray[np.uint8], quantization: GGMLQuantizationType) -> torch.Tensor:
    """Raw rows as float32 [rows, columns]; releases the interpreter lock while it works. Raises CheckpointError."""
    if quantization is GGMLQuantizationType.Q8_0:
        return _dequantized_q8_0(rows)
    try:
        return torch.from_numpy(np.ascontiguousarray(dequantize(rows, quantization)))
    except NotImplementedError:
        raise CheckpointError(f"the quantisation {quantization.name} is not supported") from None


def _dequantized_q8_0(rows: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Blocks of a float16 scale and 32 int8 values: five times as fast as the general path, for the widest tensors."""
    blocks = torch.from_numpy(rows).view(-1, 34)
    scales = blocks[:, :2].contiguous().view(torch.float16).float()
    return (blocks[:, 2:].view(torch.int8) * scales).view(*rows.shape[:-1], -1)
