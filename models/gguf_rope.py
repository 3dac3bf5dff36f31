"""The rope scaling of a GGUF file under the keys of a config's ``rope_scaling``.

Knows llama.cpp's keys, and the tensors that hold what no key does: ``rope_freqs`` of Llama 3, and the two sets of
LongRoPE. Imports no torch.
"""

from __future__ import annotations

from gguf.constants import GGMLQuantizationType

from models.errors import CheckpointError
from models.gguf_file import GGUFFile

_ORIGINAL = "original_max_position_embeddings"
_FREQUENCIES, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
_YARN_KEYS = {
    "factor": "factor",
    _ORIGINAL: "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def gguf_rope_scaling(file: GGUFFile, prefix: str) -> dict[str, object] | None:
    """``prefix`` begins the keys of the file's architecture. Raises CheckpointError for what cannot be computed."""
    keys = f"{prefix}rope.scaling."
    metadata = file.metadata
    kind = metadata.get(f"{keys}type")
    factor = metadata.get(f"{keys}factor") or metadata.get(f"{prefix}rope.scale_linear")
    if kind is None and factor is not None:
        kind = "linear"  # what llama.cpp takes it for
    if _SHORT in file.tensors and _LONG in file.tensors:
        return {
            "rope_type": "longrope",
            "short_factor": _factors(file, _SHORT),
            "long_factor": _factors(file, _LONG),
            _ORIGINAL: metadata.get(f"{keys}original_context_length"),
            "attention_factor": metadata.get(f"{keys}attn_factor"),
        }
    if _FREQUENCIES in file.tensors:
        if kind not in (None, "none") and factor not in (None, 1.0):
            raise CheckpointError(f"{file.path}: {_FREQUENCIES} and {keys}type {kind!r} together are not supported")
        return {"rope_type": "factors", "factors": _factors(file, _FREQUENCIES)}
    if kind in (None, "none"):
        return None
    if kind == "yarn":
        return _yarn(file, keys) | _temperature(file, prefix)
    return {"rope_type": kind, "factor": factor}


def _yarn(file: GGUFFile, keys: str) -> dict[str, object]:
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if (value := file.metadata.get(f"{keys}{name}", 1.0)) != 1.0:
            raise CheckpointError(f"{file.path}: {keys}{name} is {value!r}, which is not supported")
    values = {"rope_type": "yarn"} | {key: file.metadata.get(f"{keys}{name}") for key, name in _YARN_KEYS.items()}
    if scale := file.metadata.get(f"{keys}yarn_log_multiplier"):
        values |= {"mscale": 1.0, "mscale_all_dim": scale}
    return values


def _temperature(file: GGUFFile, prefix: str) -> dict[str, object]:
    """How Ministral 3 sharpens attention beyond its original length, which configs have in their rope."""
    original, length = f"{prefix}rope.scaling.original_context_length", f"{prefix}attention.temperature_length"
    if file.metadata.get(length, file.metadata.get(original)) != file.metadata.get(original):
        raise CheckpointError(f"{file.path}: {length} other than {original} is not supported")
    return {"llama_4_scaling_beta": file.metadata.get(f"{prefix}attention.temperature_scale")}


def _factors(file: GGUFFile, name: str) -> list[float]:
    tensor = file.tensors[name]
    if tensor.quantization is not GGMLQuantizationType.F32:
        raise CheckpointError(f"{file.path}: the tensor {name!r} is {tensor.quantization.name} and should be F32")
    factors: list[float] = tensor.data.view("<f4").tolist()
    return factors
