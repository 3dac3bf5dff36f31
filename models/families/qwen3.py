"""Qwen 3 (2025): a Llama with heads of their own size, whose queries and keys are normed head by head."""

from __future__ import annotations

from dataclasses import replace

from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import (
    ATTENTION,
    GATED_MLP,
    GGUF_ATTENTION,
    GGUF_GATED_MLP,
    GGUF_NORMS_BEFORE,
    GGUF_QK_NORMS,
    NORMS_BEFORE,
    QK_NORMS,
    TOP,
    gguf_names,
)
from models.families.windows import read_late_windows, with_windows
from models.fields import Fields
from models.spec import ModelSpec, QKNorm
from models.tensor_names import TensorNames


def _read(fields: Fields) -> ModelSpec:
    spec = read_llama(fields.without("sliding_window"))
    return replace(with_windows(spec, read_late_windows(fields)), qk_norm=QKNorm.HEAD)


QWEN3 = Family(
    "qwen3",
    architectures=("Qwen3ForCausalLM",),
    read=_read,
    names=TensorNames("model.layers.", TOP, ATTENTION | QK_NORMS | GATED_MLP | NORMS_BEFORE),
    gguf_architectures=("qwen3",),
    gguf_names=gguf_names(GGUF_ATTENTION, GGUF_QK_NORMS, GGUF_GATED_MLP, GGUF_NORMS_BEFORE),
)
