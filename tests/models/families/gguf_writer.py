"""GGUFForm: how llama.cpp stores a model; and what writes a Hugging Face directory that way, in float32.

Names of tensors are those of the ``gguf`` package's own table, not of ours. What every architecture has is written for
all; a form says the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize
from safetensors.numpy import load_file

_EXPERT = re.compile(r"(model\.layers\.\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
_GPT_OSS_EXPERTS = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(gate_up_proj|down_proj)(_bias)?")
_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}  # Mixtral's
Array = npt.NDArray[Any]
Change = Callable[[str, Array, Mapping[str, Any]], Array]


@dataclass(frozen=True)
class GGUFForm:
    """``keys`` are metadata beyond that of every architecture, without the prefix.

    ``change(hf_name, values, config)`` gives what is stored of a tensor; ``tensors`` are more of these, by their names
    in the file. ``config`` holds what the directory's own calls otherwise, or leaves out.
    """

    architecture: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    change: Change = lambda name, values, config: values
    tensors: Mapping[str, list[float]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


def write_gguf(
    directory: Path,
    path: Path,
    form: GGUFForm,
    *,
    quantization: gguf.GGMLQuantizationType | None = None,
    quantised: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """``quantization`` is of all matrices, if there is one, but for those with one of the words of ``quantised`` in
    their names, which have its type.
    """
    config = json.loads((directory / "config.json").read_text()) | dict(form.config)
    writer = gguf.GGUFWriter(path, form.architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    if config.get("num_key_value_heads"):
        writer.add_head_count_kv(config["num_key_value_heads"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if eps := config.get("layer_norm_eps") or config.get("layer_norm_epsilon"):
        writer.add_layer_norm_eps(eps)
    theta = (config.get("rope_parameters") or {}).get("rope_theta") or config.get("rope_theta")
    if theta is not None:
        writer.add_rope_freq_base(theta)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for key, value in form.keys.items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        add[type(value)](f"{form.architecture}.{key}", value)
    architecture = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == form.architecture)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in _as_converted(load_file(directory / "model.safetensors")).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        array = np.ascontiguousarray(form.change(name, values, config), dtype=np.float32)
        kind = next((kind for word, kind in (quantised or {}).items() if word in stored), quantization)
        if kind is None or array.ndim == 1:
            writer.add_tensor(stored, array)
        else:
            writer.add_tensor(stored, quantize(array, kind), raw_dtype=kind)
    for name, numbers in form.tensors.items():
        writer.add_tensor(name, np.array(numbers, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleaved_heads(name: str, values: Array, config: Mapping[str, Any]) -> Array:
    """As llama.cpp's converter stores Llamas: the rows of each query and key head so that neighbours turn together."""
    if ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    else:
        return values
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def queries_first(values: Array, config: Mapping[str, Any], groups: int) -> Array:
    """A fused projection as llama.cpp's converter stores it: the query rows of all groups, then keys, then values."""
    cut = values.reshape(groups, config["num_attention_heads"] // groups + 2, -1, *values.shape[1:])
    parts = (cut[:, :-2], cut[:, -2], cut[:, -1])
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def _as_converted(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """``tensors`` with those of the experts of a layer in one, gate apart from up, under the names that llama.cpp's
    converter makes up.
    """
    stacked: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, values in tensors.items():
        if name.endswith("block_sparse_moe.input_linear.weight"):  # Granite's
            layer = name.partition(".block_sparse_moe")[0]
            for part, rows in zip(("gate_proj", "up_proj"), np.split(values, 2, axis=1), strict=True):
                stacked[f"{layer}.mlp.experts.{part}.weight"] = rows
        elif (match := _GPT_OSS_EXPERTS.fullmatch(name)) is not None:
            stem, part, bias = match.groups()
            ending = ".bias" if bias else ".weight"
            rows = values if bias else values.swapaxes(1, 2)
            if part == "down_proj":
                stacked[f"{stem}.down_proj{ending}"] = rows
            else:
                stacked[f"{stem}.gate_proj{ending}"], stacked[f"{stem}.up_proj{ending}"] = rows[:, ::2], rows[:, 1::2]
        elif name.endswith("sinks"):
            stacked[f"{name}.weight"] = values
        elif (match := _EXPERT.fullmatch(name)) is None:
            stacked[name] = values
        else:
            layer, number, part = match.groups()
            merged = f"{layer}.mlp.experts.{_PROJECTIONS.get(part, part)}.weight"
            experts.setdefault(merged, {})[int(number)] = values
    return stacked | {name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in experts.items()}
