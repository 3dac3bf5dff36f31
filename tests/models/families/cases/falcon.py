"""Falcon, of one norm or two, with one key head or groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import Array, GGUFForm, queries_first


def per_group(name: str, values: Array, config: Mapping[str, Any]) -> Array:
    groups = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    return queries_first(values, config, groups=groups) if "query_key_value" in name else values


def form(*, num_kv_heads: int, intermediate_size: int) -> tuple[GGUFForm, ...]:
    config = {"num_key_value_heads": num_kv_heads, "intermediate_size": intermediate_size}
    return (GGUFForm("falcon", change=per_group, config=config),)


CASES = (
    FamilyCase(
        "falcon",
        "falcon",
        {"intermediate_size": None, "layer_norm_epsilon": 1e-2},
        form(num_kv_heads=1, intermediate_size=256),
    ),
    FamilyCase(
        "falcon of two norms",
        "falcon",
        {
            "intermediate_size": None,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "ffn_hidden_size": 96,
            "bias": True,
            "tie_word_embeddings": False,
        },
        form(num_kv_heads=2, intermediate_size=96),
    ),
    FamilyCase(
        "falcon of one norm and groups",
        "falcon",
        {
            "intermediate_size": None,
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 1,
            "num_kv_heads": 2,
        },
        form(num_kv_heads=2, intermediate_size=256),
    ),
    FamilyCase(
        "falcon in sequence", "falcon", {"intermediate_size": None, "multi_query": False, "parallel_attn": False}
    ),
)
