"""Mistral (Jiang et al., 2023) and Ministral: a Llama some or all of whose layers see a window only.

Most of their GGUF files call them "llama"; those with Ministral 3's rope are of an architecture of their own.
"""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family
from models.families.llama import LLAMA_GGUF_NAMES, read_llama
from models.families.names import LLAMA_NAMES
from models.families.windows import SLIDING, read_windows, with_windows
from models.fields import Fields
from models.spec import ModelSpec, SharpeningSpec


def _read(fields: Fields) -> ModelSpec:
    spec = read_llama(fields)
    if fields.get("layer_types") is not None:
        spec = with_windows(spec, read_windows(fields, [SLIDING] * spec.num_layers))
    return replace(spec, sharpening=_sharpening(fields))


def _sharpening(fields: Fields) -> SharpeningSpec | None:
    """Ministral 3's, whose numbers are among those of its rope."""
    scaling = fields.part("rope_parameters") or fields.part("rope_scaling")
    if scaling is None or not scaling.get("llama_4_scaling_beta"):
        return None
    return SharpeningSpec(scaling.number("llama_4_scaling_beta"), scaling.integer("original_max_position_embeddings"))


MISTRAL = Family(
    "mistral",
    architectures=(
        "MistralForCausalLM",
        "mistral",
        "MinistralForCausalLM",
        "ministral",
        "Ministral3ForCausalLM",
        "ministral3",
    ),
    read=_read,
    names=LLAMA_NAMES,
    gguf_architectures=("mistral3",),
    gguf_names=LLAMA_GGUF_NAMES,
)
