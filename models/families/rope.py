"""Rotary position embedding as descriptions write it down: its base, its scaling rule, how many elements turn."""

from __future__ import annotations

from models.fields import Fields
from models.spec import RopeSpec

_PARAMETERS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def read_rope(fields: Fields, *, default_theta: float = 10_000.0, head_dim: int | None = None) -> RopeSpec:
    """The rope of a model that has one, from ``rope_theta`` and ``rope_scaling`` or the newer ``rope_parameters``.

    ``head_dim``: of a family that turns only part of it where ``partial_rotary_factor`` says so.
    """
    scaling = fields.part("rope_parameters") or fields.part("rope_scaling")
    rope = scaled_rope(fields, fields.number("rope_theta", default_theta), scaling)
    if head_dim is None:
        return rope
    factor = (scaling or fields).number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    dim = fields.integer("rotary_dim", int(head_dim * factor))
    return rope if dim == head_dim else rope_of_dim(rope, dim)


def rope_of_dim(rope: RopeSpec, dim: int) -> RopeSpec:
    """``rope`` that turns the first ``dim`` elements."""
    return RopeSpec(rope.theta, rope.scaling, rope.parameters, rope.frequency_factors, dim)


def scaled_rope(fields: Fields, theta: float, scaling: Fields | None) -> RopeSpec:
    """``scaling`` is a config's ``rope_scaling``, or an entry of the newer ``rope_parameters``, with theta in it."""
    if scaling is None:
        return RopeSpec(theta)
    theta = scaling.number("rope_theta", theta)
    name = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if name == "factors":  # GGUF files alone
        return RopeSpec(theta, name, frequency_factors=scaling.numbers("factors"))
    wanted = _PARAMETERS.get(name)
    if wanted is None:
        raise fields.error("rope_scaling", f"is of type {name!r}; supported are {', '.join(_PARAMETERS)}")
    return RopeSpec(theta, name, {key: scaling.number(key) for key in wanted})
