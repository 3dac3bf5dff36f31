"""Qwen 2 and 2.5."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm

CASES = (
    FamilyCase("qwen2", "qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}, (GGUFForm("qwen2"),)),
    FamilyCase(
        "qwen2 untied with yarn",
        "qwen2",
        {
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        (
            GGUFForm(
                "qwen2",
                {
                    "rope.dimension_count": 16,
                    "rope.scaling.type": "yarn",
                    "rope.scaling.factor": 4.0,
                    "rope.scaling.original_context_length": 64,
                },
            ),
        ),
    ),
    FamilyCase(
        "qwen2 with late windows",
        "qwen2",
        {
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 1,
        },
    ),
    FamilyCase(
        "qwen2 with named windows",
        "qwen2",
        {
            "num_key_value_heads": 4,
            "use_sliding_window": True,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
)
