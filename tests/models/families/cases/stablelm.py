"""StableLM."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm


def form(rotary_dim: int) -> tuple[GGUFForm, ...]:
    return (GGUFForm("stablelm", {"use_parallel_residual": True, "rope.dimension_count": rotary_dim}),)


NORMED_HEADS = FamilyCase(
    "stablelm that norms heads",
    "stablelm",
    {"num_key_value_heads": 2, "use_parallel_residual": True, "qk_layernorm": True},
)
CASES = (
    FamilyCase(
        "stablelm",
        "stablelm",
        {"num_key_value_heads": 2, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
        form(8),
    ),
    FamilyCase(
        "stablelm side by side",
        "stablelm",
        {"num_key_value_heads": 4, "use_parallel_residual": True, "layer_norm_eps": 1e-2, "rope_theta": 100.0},
        form(4),
    ),
    NORMED_HEADS,
)
