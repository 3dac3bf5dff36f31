"""Sliding windows as descriptions write them down: which layers see how many positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from models.fields import Fields
from models.spec import ModelSpec

SLIDING, FULL = "sliding_attention", "full_attention"


def read_windows(fields: Fields, default_kinds: Sequence[str], default_window: int | None = None) -> list[int | None]:
    """The window of each layer, whose kinds are ``layer_types`` or, without that, ``default_kinds``."""
    kinds = fields.layer_kinds("layer_types", (SLIDING, FULL)) or default_kinds
    window = fields.optional_integer("sliding_window") or default_window
    if window is None and SLIDING in kinds:
        window = fields.integer("sliding_window")  # which says that it is missing
    return [window if kind == SLIDING else None for kind in kinds]


def read_late_windows(fields: Fields) -> list[int | None]:
    """Those of Qwen: if they are asked for, of all but the first ``max_window_layers``, or as ``layer_types`` says."""
    count = fields.layer_count()
    if not fields.flag("use_sliding_window", default=False) or fields.get("sliding_window") is None:
        return [None] * count
    first = fields.integer("max_window_layers", 28)
    return read_windows(fields, [SLIDING if index >= first else FULL for index in range(count)])


def with_windows(spec: ModelSpec, windows: Sequence[int | None]) -> ModelSpec:
    """``spec`` whose layers have these windows."""
    layers = zip(spec.layers, windows, strict=True)
    return replace(spec, layers=tuple(replace(layer, window=window) for layer, window in layers))
