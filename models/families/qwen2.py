"""Qwen 2 and 2.5 (2024): a Llama whose queries, keys and values have biases."""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import (
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_BEFORE,
    LLAMA_NAMES,
    gguf_names,
)
from models.families.windows import read_late_windows, with_windows
from models.fields import Fields
from models.spec import ModelSpec


def _read(fields: Fields) -> ModelSpec:
    spec = read_llama(fields.without("sliding_window", "attention_bias", "attention_output_bias"))
    return replace(with_windows(spec, read_late_windows(fields)), qkv_bias=True)


QWEN2 = Family(
    "qwen2",
    architectures=("Qwen2ForCausalLM", "qwen2"),
    read=_read,
    names=LLAMA_NAMES,
    gguf_architectures=("qwen2",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_GATED_MLP, GGUF_NORMS_BEFORE),
)
