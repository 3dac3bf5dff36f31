"""Phi 1, 1.5 and 2."""

from __future__ import annotations

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm

CASES = (
    FamilyCase("phi", "phi", {"num_key_value_heads": 4}, (GGUFForm("phi2", {"rope.dimension_count": 8}),)),
    FamilyCase(
        "phi with shared key heads",
        "phi",
        {
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 5e3,
                "partial_rotary_factor": 0.25,
            },
        },
    ),
)
