"""GPT-NeoX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import Array, GGUFForm, queries_first


def form(*, is_parallel: bool, rotary_dim: int) -> tuple[GGUFForm, ...]:
    keys = {"use_parallel_residual": is_parallel, "rope.dimension_count": rotary_dim}
    return (GGUFForm("gptneox", keys, per_head),)


def per_head(name: str, values: Array, config: Mapping[str, Any]) -> Array:
    return queries_first(values, config, groups=config["num_attention_heads"]) if "query_key_value" in name else values


GPT_NEOX = FamilyCase(
    "gpt neox",
    "gpt_neox",
    {"rotary_pct": 0.5, "rotary_emb_base": 100.0, "layer_norm_eps": 1e-2},
    form(is_parallel=True, rotary_dim=8),
)
CASES = (
    GPT_NEOX,
    FamilyCase(
        "gpt neox in sequence",
        "gpt_neox",
        {"use_parallel_residual": False},
        form(is_parallel=False, rotary_dim=4),
    ),
    FamilyCase(
        "gpt neox without biases",
        "gpt_neox",
        {"attention_bias": False, "rotary_pct": 1.0, "hidden_act": "gelu_fast"},
    ),
)
