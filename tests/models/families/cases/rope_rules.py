"""Llamas under every rule that stretches rotary embedding, with prompts past the lengths where it sets in."""

from __future__ import annotations

import math
from typing import Any

from tests.models.families.family_case import FamilyCase
from tests.models.families.gguf_writer import GGUFForm, interleaved_heads

YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHORT = [1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5]
LONG = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0]
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": SHORT, "long_factor": LONG}


def llama(name: str, rope: dict[str, Any], *forms: GGUFForm, longest: int = 512, **rest: Any) -> FamilyCase:
    config = {"num_key_value_heads": 2, "rope_parameters": rope, "max_position_embeddings": longest}
    return FamilyCase(name, "llama", config, forms, **rest)


def scaled(keys: dict[str, Any], **tensors: list[float]) -> GGUFForm:
    return GGUFForm(
        "llama",
        {f"rope.scaling.{key}": value for key, value in keys.items()},
        interleaved_heads,
        {f"{name}.weight": values for name, values in tensors.items()},
    )


def longrope(keys: dict[str, Any]) -> GGUFForm:
    return scaled(keys, rope_factors_long=LONG, rope_factors_short=SHORT)


def llama3_factors(rope: dict[str, Any], dim: int) -> list[float]:
    """What each frequency is divided by, pair by pair: nothing, everything or a blend."""
    factors = []
    for pair in range(dim // 2):
        turns = rope["original_max_position_embeddings"] / (2 * math.pi * rope["rope_theta"] ** (2 * pair / dim))
        kept = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        kept = min(max(kept, 0.0), 1.0)
        factors.append(1.0 / (kept + (1.0 - kept) / rope["factor"]))
    assert len(set(factors)) == 3  # nothing, everything and a blend are there
    return factors


CASES = (
    llama(
        "linear",
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
        scaled({"type": "linear", "factor": 4.0}),
        lengths=(1, 23, 320),
    ),
    llama("dynamic", {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}, by_token=True, longest=40),
    llama("llama3", LLAMA3, scaled({}, rope_freqs=llama3_factors(LLAMA3, dim=16)), lengths=(1, 23, 320)),
    llama(
        "yarn",
        YARN,
        scaled(YARN_KEYS),
        scaled(YARN_KEYS | {"yarn_log_multiplier": 0.0, "yarn_ext_factor": 1.0, "attn_factor": 1.0}),
        lengths=(1, 23, 320),
    ),
    llama("yarn not truncated", YARN | {"truncate": False, "beta_fast": 6.0, "beta_slow": 0.5}),
    llama("yarn with magnitudes", YARN | {"mscale": 1.4, "mscale_all_dim": 0.6}),
    llama(
        "yarn of magnitude 1",
        YARN | {"beta_fast": 20.0, "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0},
        scaled(YARN_KEYS | {"yarn_beta_fast": 20.0, "yarn_beta_slow": 0.5, "yarn_log_multiplier": 1.0}),
    ),
    llama("yarn with its attention factor", YARN | {"attention_factor": 1.3}),
    llama(
        "longrope for long servers",
        LONGROPE | {"original_max_position_embeddings": 16},
        longrope({"original_context_length": 16}),
        lengths=(17, 90, 320),
    ),
    llama(
        "longrope for short servers",
        LONGROPE | {"original_max_position_embeddings": 128},
        longrope({"original_context_length": 128}),
        max_model_len=128,
    ),
    llama(
        "longrope with its attention factor",
        LONGROPE | {"original_max_position_embeddings": 128, "attention_factor": 1.3},
        longrope({"original_context_length": 128, "attn_factor": 1.3}),
        max_model_len=128,
    ),
)
