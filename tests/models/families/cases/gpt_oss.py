"""gpt-oss in plain floats."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm

CONFIG = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 24,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
FORM = GGUFForm(
    "gpt-oss",
    {
        "expert_count": 5,
        "expert_used_count": 2,
        "expert_feed_forward_length": 96,
        "attention.sliding_window": 24,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
    },
)
GPT_OSS = FamilyCase("gpt-oss", "gpt_oss", CONFIG | {"rope_parameters": YARN}, (FORM,))
CASES = (
    GPT_OSS,
    FamilyCase(
        "gpt-oss with a full layer first",
        "gpt_oss",
        CONFIG
        | {
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "num_experts_per_tok": 4,
        },
    ),
)
