"""Granite, without experts."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, interleaved_heads

CASES = (
    FamilyCase(
        "granite",
        "granite",
        {
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-2,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.6,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.3,
            "tie_word_embeddings": True,
        },
        (
            GGUFForm(
                "granite",
                {
                    "attention.scale": 0.6,
                    "embedding_scale": 12.0,
                    "residual_scale": 0.4,
                    "logit_scale": 0.3,
                    "rope.dimension_count": 16,
                },
                interleaved_heads,
            ),
        ),
    ),
    FamilyCase(
        "granite with biases",
        "granite",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
        (GGUFForm("granite", {"attention.scale": 1.0}, interleaved_heads),),
    ),
)
