"""SmolLM 3, its layers that turn nothing included."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, interleaved_heads

CASES = (
    FamilyCase(
        "smollm3",
        "smollm3",
        {"num_key_value_heads": 2, "num_hidden_layers": 5},
        (GGUFForm("smollm3", change=interleaved_heads),),
    ),
    FamilyCase(
        "smollm3 with listed layers",
        "smollm3",
        {"num_key_value_heads": 1, "no_rope_layers": [0, 1, 0], "attention_bias": True, "mlp_bias": True},
    ),
    FamilyCase(
        "smollm3 with windows",
        "smollm3",
        {
            "num_key_value_heads": 2,
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 20,
            "tie_word_embeddings": False,
        },
    ),
)
