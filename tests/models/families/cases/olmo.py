"""OLMo 1, 2 and 3."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, interleaved_heads

CASES = (
    FamilyCase(
        "olmo",
        "olmo",
        {"num_key_value_heads": 2, "clip_qkv": 0.7, "tie_word_embeddings": True},
        (GGUFForm("olmo", {"attention.clamp_kqv": 0.7, "attention.layer_norm_epsilon": 1e-5}, interleaved_heads),),
    ),
    FamilyCase("olmo2", "olmo2", {"num_key_value_heads": 2, "rms_norm_eps": 1e-3}, (GGUFForm("olmo2"),)),
    FamilyCase("olmo2 with biases", "olmo2", {"num_key_value_heads": 4, "attention_bias": True}, (GGUFForm("olmo2"),)),
    FamilyCase(
        "olmo3",
        "olmo3",
        {
            "num_hidden_layers": 5,
            "sliding_window": 13,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                    "rope_theta": 20_000.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
            },
        },
        (
            GGUFForm(
                "olmo2",
                {
                    "attention.sliding_window": 13,
                    "attention.sliding_window_pattern": [True, True, True, False, True],
                    "rope.scaling.type": "yarn",
                    "rope.scaling.factor": 4.0,
                    "rope.scaling.original_context_length": 128,
                    "rope.freq_base": 20_000.0,
                },
            ),
        ),
    ),
)
