"""SmolLM 3 (2025): a Llama whose every fourth layer, or those that it lists, turns nothing (NoPE)."""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family
from models.families.llama import LLAMA_GGUF_NAMES, read_llama
from models.families.names import LLAMA_NAMES
from models.families.windows import FULL, SLIDING, read_windows, with_windows
from models.fields import Fields
from models.spec import ModelSpec

_INTERVAL = 4  # what GGUF files leave to the reader


def _read(fields: Fields) -> ModelSpec:
    spec = read_llama(fields.without("sliding_window"), default_theta=2_000_000.0)
    turns = _turning_layers(fields)
    layers = tuple(layer if does else replace(layer, rope=None) for layer, does in zip(spec.layers, turns, strict=True))
    spec = replace(spec, layers=layers)
    if not fields.flag("use_sliding_window", default=False) or fields.get("sliding_window") is None:
        return spec
    return with_windows(spec, read_windows(fields, [FULL if does else SLIDING for does in turns]))


def _turning_layers(fields: Fields) -> list[bool]:
    """Whether each layer turns; the key that says so lists 1 for those that do, whatever its name."""
    count = fields.layer_count()
    listed = fields.get("no_rope_layers")
    if listed is None:
        interval = fields.integer("no_rope_layer_interval", _INTERVAL)
        return [(index + 1) % interval != 0 for index in range(count)]
    if not isinstance(listed, list) or len(listed) < count or any(one not in (0, 1) for one in listed):
        raise fields.error("no_rope_layers", f"should be 1 or 0 for each of {count} layers")
    return [bool(one) for one in listed[:count]]


SMOLLM3 = Family(
    "smollm3",
    architectures=("SmolLM3ForCausalLM", "smollm3"),
    read=_read,
    names=LLAMA_NAMES,
    gguf_architectures=("smollm3",),
    gguf_names=LLAMA_GGUF_NAMES,
)
