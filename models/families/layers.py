"""Layers as descriptions write them down, where some slide over a window and others see everything."""

from __future__ import annotations

from models.families.windows import FULL, SLIDING, read_windows
from models.fields import Fields
from models.spec import LayerSpec, RopeSpec


def read_layers(
    fields: Fields, full: RopeSpec, sliding: RopeSpec, *, default_pattern: int, default_window: int | None = None
) -> tuple[LayerSpec, ...]:
    """From ``layer_types``; without it every ``sliding_window_pattern``-th layer sees everything."""
    pattern = fields.integer("sliding_window_pattern", default_pattern)
    kinds = [SLIDING if (index + 1) % pattern else FULL for index in range(fields.layer_count())]
    windows = read_windows(fields, kinds, default_window)
    return tuple(LayerSpec(None, full) if window is None else LayerSpec(window, sliding) for window in windows)
