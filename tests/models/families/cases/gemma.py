"""Gemma 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import Array, GGUFForm


def added_one(name: str, values: Array, config: Mapping[str, Any]) -> Array:
    """As llama.cpp's converter stores Gemma's norms."""
    return values + 1.0 if name.endswith("norm.weight") else values


CASES = (
    FamilyCase(
        "gemma",
        "gemma",
        {"num_key_value_heads": 1, "head_dim": 24, "rms_norm_eps": 1e-2},
        (GGUFForm("gemma", change=added_one),),
    ),
    FamilyCase(
        "gemma2",
        "gemma2",
        {
            "num_key_value_heads": 2,
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "rms_norm_eps": 1e-2,
            "sliding_window": 11,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        (
            GGUFForm(
                "gemma2",
                {"attention.sliding_window": 11, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
                added_one,
            ),
        ),
    ),
    FamilyCase(
        # a GGUF file has no key for this scale of scores: it is that of head_dim, but in the largest model
        "gemma2 with a scale of its own",
        "gemma2",
        {"num_key_value_heads": 4, "head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 3},
    ),
)
