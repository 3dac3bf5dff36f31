"""Mistral, Ministral and Ministral 3."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, interleaved_heads

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.1,
    "rope.dimension_count": 24,
}
MINISTRAL = FamilyCase(
    "ministral with windows on some layers",
    "ministral",
    {
        "num_key_value_heads": 2,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "head_dim": 32,
    },
)
CASES = (
    FamilyCase(
        "mistral with a window",
        "mistral",
        {"num_key_value_heads": 2, "sliding_window": 24},
        (GGUFForm("llama", {"attention.sliding_window": 24}, interleaved_heads),),
    ),
    FamilyCase(
        "mistral with heads of its own",
        "mistral",
        {"num_key_value_heads": 1, "sliding_window": None, "head_dim": 24},
        (GGUFForm("llama", {"rope.dimension_count": 24}, interleaved_heads),),
    ),
    MINISTRAL,
    FamilyCase(
        "ministral3",
        "ministral3",
        {"num_key_value_heads": 2, "head_dim": 24, "rope_parameters": YARN},
        (GGUFForm("mistral3", YARN_KEYS, interleaved_heads),),
    ),
)
