"""Rotary position embedding as descriptions write it down: its base, its scaling rule, how many elements turn.

What the rules do with these numbers is ``models.rotary``'s to know. Sources: the configs of Hugging Face, whose
defaults these are; YaRN (Peng et al., 2023); LongRoPE (Ding et al., 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from models.errors import CheckpointError
from models.fields import Fields
from models.spec import RopeSpec

_LENGTH = "max_position_embeddings"
_ORIGINAL = "original_max_position_embeddings"


def read_rope(
    fields: Fields,
    *,
    default_theta: float = 10_000.0,
    head_dim: int | None = None,
    default_part: float = 1.0,
    aliases: Mapping[str, str] | None = None,
) -> RopeSpec:
    """The rope of a model that has one, from ``rope_theta`` and ``rope_scaling`` or the newer ``rope_parameters``.

    ``head_dim``: of a family that turns only part of it where ``partial_rotary_factor`` says so; ``default_part`` of it
    where that is missing. ``aliases``: what a family calls rules.
    """
    scaling = fields.part("rope_parameters") or fields.part("rope_scaling")
    rope = scaled_rope(fields, fields.number("rope_theta", default_theta), scaling, aliases)
    if head_dim is None:
        return rope
    factor = (scaling or fields).number("partial_rotary_factor", fields.number("partial_rotary_factor", default_part))
    dim = fields.integer("rotary_dim", int(head_dim * factor))
    return rope if dim == head_dim else rope_of_dim(rope, dim)


def read_ropes(
    fields: Fields, *, default_theta: float = 10_000.0, local_theta: float | None = None
) -> tuple[RopeSpec, RopeSpec]:
    """Of layers that see everything, and of those that slide, whose base is ``local_theta`` if there is one.

    Only full layers are ever scaled, unless each kind has its own description.
    """
    theta = fields.number("rope_theta", default_theta)
    local = fields.optional_number("rope_local_base_freq") or local_theta
    parameters = fields.part("rope_parameters")
    if parameters is not None and (parameters.get("full_attention") or parameters.get("sliding_attention")):
        full = scaled_rope(fields, theta, parameters.part("full_attention"))
        return full, scaled_rope(fields, local or theta, parameters.part("sliding_attention"))
    full = read_rope(fields, default_theta=default_theta)
    return full, RopeSpec(local or full.theta)


def rope_of_dim(rope: RopeSpec, dim: int) -> RopeSpec:
    """``rope`` that turns the first ``dim`` elements."""
    return replace(rope, dim=dim)


def scaled_rope(
    fields: Fields, theta: float, scaling: Fields | None, aliases: Mapping[str, str] | None = None
) -> RopeSpec:
    """``scaling`` is a config's ``rope_scaling``, or an entry of the newer ``rope_parameters``, with theta in it."""
    if scaling is None:
        return RopeSpec(theta)
    for kind in ("full_attention", "sliding_attention"):
        scaling.refuse_unless(kind)
    theta = scaling.number("rope_theta", theta)
    name = str(scaling.get("rope_type") or scaling.get("type") or "default")
    read = _RULES.get((aliases or {}).get(name, name))
    if read is None:
        known = ", ".join(rule for rule in _RULES if rule != "factors")
        raise fields.error("rope_scaling", f"is of type {name!r}; supported are {known}")
    return read(fields, theta, scaling)


def longest_length(fields: Fields, rope: RopeSpec) -> int:
    """The most positions that a model of ``rope`` is for.

    The rules "dynamic" and "yarn" are added to configs whose own number stays that of before they stretched it.
    """
    length = fields.integer(_LENGTH)
    if rope.scaling == "dynamic":
        return max(length, int(length * rope.parameters["factor"]))
    if rope.scaling == "yarn":
        return max(length, int(rope.parameters[_ORIGINAL] * rope.parameters["factor"]))
    return length


def check_rope(rope: RopeSpec, head_dim: int, source: str) -> None:
    """Raise CheckpointError unless heads of ``head_dim`` elements can turn so."""
    dim = head_dim if rope.dim is None else rope.dim
    if dim % 2 or not 0 < dim <= head_dim:
        raise CheckpointError(f"{source}: {dim} elements of heads of {head_dim} cannot turn in pairs")
    if rope.theta <= 1.0:
        raise CheckpointError(f"{source}: the rope base {rope.theta} should be above 1")
    if rope.scaling == "dynamic" and dim == 2:
        raise CheckpointError(f"{source}: the rope rule 'dynamic' needs heads of more than 2 elements that turn")
    for factors in (rope.frequency_factors, rope.long_factors):
        if factors and len(factors) != dim // 2:
            raise CheckpointError(f"{source}: {len(factors)} rope factors are not one for each of {dim // 2} pairs")


def _read_default(fields: Fields, theta: float, scaling: Fields) -> RopeSpec:
    return RopeSpec(theta)


def _read_linear(fields: Fields, theta: float, scaling: Fields) -> RopeSpec:
    return RopeSpec(theta, "linear", {"factor": scaling.number("factor")})


def _read_dynamic(fields: Fields, theta: float, scaling: Fields) -> RopeSpec:
    scaling.refuse_unless("alpha")
    return RopeSpec(theta, "dynamic", {"factor": scaling.number("factor"), _LENGTH: fields.integer(_LENGTH)})


def _read_llama3(fields: Fields, theta: float, scaling: Fields) -> RopeSpec:
    numbers = {key: scaling.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor")}
    if numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
        raise scaling.error("high_freq_factor", f"should be above low_freq_factor, {numbers['low_freq_factor']}")
    return RopeSpec(theta, "llama3", numbers | {_ORIGINAL: _original_length(fields, scaling)})


def _read_yarn(fields: Fields, theta: float, scaling: Fields) -> RopeSpec:
    original = _original_length(fields, scaling)
    factor = scaling.number("factor", fields.integer(_LENGTH) / original)
    attention_factor = scaling.optional_number("attention_factor")
    if attention_factor is None:
        scale, of_all = scaling.optional_number("mscale"), scaling.optional_number("mscale_all_dim")
        attention_factor = _magnitude(factor)
        if scale is not None and of_all is not None:
            attention_factor = _magnitude(factor, scale) / _magnitude(factor, of_all)
    numbers = {
        "factor": factor,
        _ORIGINAL: original,
        "beta_fast": scaling.number("beta_fast", 32.0),
        "beta_slow": scaling.number("beta_slow", 1.0),
        "truncate": scaling.flag("truncate", default=True),
    }
    if numbers["beta_fast"] < numbers["beta_slow"]:
        raise scaling.error("beta_fast", f"should not be below beta_slow, {numbers['beta_slow']}")
    return RopeSpec(theta, "yarn", numbers, attention_factor=attention_factor)


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """How much larger products of queries and keys are made where contexts are ``factor`` times as long (YaRN)."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


def _read_longrope(fields: Fields, theta: float, scaling: Fields) -> RopeSpec:
    original = _original_length(fields, scaling)
    factor = scaling.number("factor", fields.integer(_LENGTH) / original)
    stretched = 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original))
    return RopeSpec(
        theta,
        "longrope",
        {_ORIGINAL: original},
        frequency_factors=scaling.numbers("short_factor"),
        long_factors=scaling.numbers("long_factor"),
        attention_factor=scaling.number("attention_factor", stretched),
    )


def _read_factors(fields: Fields, theta: float, scaling: Fields) -> RopeSpec:
    return RopeSpec(theta, "factors", frequency_factors=scaling.numbers("factors"))


def _original_length(fields: Fields, scaling: Fields) -> float:
    """The context that the model was first trained on; Phi 3's configs have it beside their rope, not in it."""
    length = fields.optional_number(_ORIGINAL) or scaling.number(_ORIGINAL, fields.integer(_LENGTH))
    if length < 2:
        raise scaling.error(_ORIGINAL, f"is {length}, shorter than any context")
    return length


_RULES: Mapping[str, Callable[[Fields, float, Fields], RopeSpec]] = MappingProxyType(
    {
        "default": _read_default,
        "linear": _read_linear,
        "dynamic": _read_dynamic,
        "llama3": _read_llama3,
        "yarn": _read_yarn,
        "longrope": _read_longrope,
        "factors": _read_factors,  # GGUF files alone
    }
)
