"""Qwen 3."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm

CASES = (
    FamilyCase(
        "qwen3",
        "qwen3",
        {"num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True},
        (GGUFForm("qwen3"),),
    ),
    FamilyCase(
        "qwen3 untied with biases",
        "qwen3",
        {"num_key_value_heads": 1, "head_dim": 32, "attention_bias": True},
        (GGUFForm("qwen3"),),
    ),
)
