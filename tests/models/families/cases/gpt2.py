"""GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import Array, GGUFForm


def rows_first(name: str, values: Array, config: Mapping[str, Any]) -> Array:
    """As llama.cpp's converter stores matrices, which GPT-2 has transposed."""
    return values.T if ".c_" in name and values.ndim == 2 else values


GPT2 = FamilyCase(
    "gpt2",
    "gpt2",
    {"intermediate_size": None},
    (
        GGUFForm(
            "gpt2",
            change=rows_first,
            config={
                "max_position_embeddings": 512,
                "hidden_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "intermediate_size": 256,
            },
        ),
    ),
)
CASES = (
    GPT2,
    FamilyCase(
        "gpt2 untied and unscaled",
        "gpt2",
        {
            "intermediate_size": None,
            "n_inner": 80,
            "layer_norm_epsilon": 1e-2,
            "scale_attn_weights": False,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
    ),
)
