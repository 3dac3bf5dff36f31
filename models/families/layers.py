"""Layers as descriptions write them down, where some slide over a window and others see everything."""

from __future__ import annotations

from models.fields import Fields
from models.spec import LayerSpec, RopeSpec

_KINDS = ("sliding_attention", "full_attention")


def read_layers(
    fields: Fields, full: RopeSpec, sliding: RopeSpec, *, default_pattern: int, default_window: int | None = None
) -> tuple[LayerSpec, ...]:
    """From ``layer_types``; without it every ``sliding_window_pattern``-th layer sees everything."""
    key = "sliding_window"
    window = fields.integer(key) if default_window is None else fields.integer(key, default_window)
    kinds = fields.layer_kinds("layer_types", _KINDS)
    if kinds is None:
        pattern = fields.integer("sliding_window_pattern", default_pattern)
        kinds = [_KINDS[(i + 1) % pattern == 0] for i in range(fields.layer_count())]
    return tuple(LayerSpec(window, sliding) if kind == _KINDS[0] else LayerSpec(None, full) for kind in kinds)
