"""Llamas, with all that their configs may add."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, interleaved_heads


def form(head_dim: int) -> tuple[GGUFForm, ...]:
    return (GGUFForm("llama", {"rope.dimension_count": head_dim}, interleaved_heads),)


CASES = (
    FamilyCase("llama", "llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}, form(16)),
    FamilyCase(
        "llama with biases",
        "llama",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5},
        form(16),
    ),
    FamilyCase(
        "llama with heads of its own",
        "llama",
        {"num_key_value_heads": 4, "head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        form(24),
    ),
)
