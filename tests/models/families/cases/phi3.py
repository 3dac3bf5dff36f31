"""Phi 3 and Phi-4-mini: fused tensors, partial rotary embedding, LongRoPE."""

from __future__ import annotations

from typing import Any

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm

SHORT = [1.0, 1.1, 1.2, 1.3, 1.5, 1.7]
LONG = [1.0, 1.5, 2.5, 5.0, 9.0, 16.0]


def longrope(original: int) -> dict[str, Any]:
    """A head of 16 elements of which 12 turn, as three quarters of Phi-4-mini's do."""
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": SHORT,
            "long_factor": LONG,
        },
    }


def longrope_form(original: int) -> tuple[GGUFForm, ...]:
    keys = {
        "attention.sliding_window": 0,
        "rope.dimension_count": 12,
        "rope.scaling.original_context_length": original,
    }
    return (GGUFForm("phi3", keys, tensors={"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT}),)


PHI3 = FamilyCase(
    "phi3 with a window",
    "phi3",
    {"sliding_window": 24},
    (GGUFForm("phi3", {"attention.sliding_window": 24, "rope.dimension_count": 16}),),
)
CASES = (
    PHI3,
    FamilyCase(
        "phi4 mini",
        "phi3",
        longrope(16) | {"num_key_value_heads": 2, "tie_word_embeddings": True},
        longrope_form(16),
        lengths=(17, 90),
    ),
    FamilyCase(
        "phi4 mini, short",
        "phi3",
        longrope(128) | {"num_key_value_heads": 1},
        longrope_form(128),
        max_model_len=128,
    ),
)
