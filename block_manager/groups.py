"""LayerGroup: layers that need the same positions, and so share one block table.

Gemma 3 has two: layers that see everything and layers that see a window. All pages have one size, whatever the group:
a page holds `block_size` positions of `layers_per_page` layers, the greatest number that divides every group. A block
of a group with more layers than that spans several pages, its *columns*:

    270M: 15 windowed + 3 full layers, 3 layers per page

    block of the full group       [page]                            3 layers x 16 positions
    block of the windowed group   [page][page][page][page][page]   15 layers x 16 positions

So one pool serves every group and no page is ever the wrong size. The free function `plan_groups` does this arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table. ``window`` counts visible positions, the newest included; None means all."""

    name: str
    window: int | None
    layers: tuple[int, ...]
    pages_per_block: int

    def first_needed_block(self, num_computed_tokens: int, block_size: int) -> int:
        """Index of the first block that position ``num_computed_tokens`` or any later one can still see."""
        if self.window is None:
            return 0
        return max(0, num_computed_tokens - self.window + 1) // block_size

    def max_blocks(self, num_tokens: int, chunk: int, block_size: int) -> int:
        """Most blocks a sequence holds while it grows to ``num_tokens``, at most ``chunk`` tokens a step.

        A step that computes positions a .. b - 1 needs positions a - window + 1 .. b - 1 at once; the worst alignment
        of that span touches one block more than its length asks for.
        """
        blocks = -(-num_tokens // block_size)
        if self.window is None:
            return blocks
        span = self.window - 1 + min(chunk, num_tokens)
        return min(blocks, (span + block_size - 2) // block_size + 1)


def plan_groups(layer_windows: Sequence[int | None]) -> tuple[LayerGroup, ...]:
    """Group layers by window; the full group, if there is one, comes first.

    ``layer_windows[i]`` is the window of layer i in positions, or None. Raises ValueError when there are no layers.
    """
    if not layer_windows:
        raise ValueError("a model without layers has no KV pages")
    by_window: dict[int | None, list[int]] = {}
    for layer, window in enumerate(layer_windows):
        by_window.setdefault(window, []).append(layer)
    layers_per_page = math.gcd(*(len(layers) for layers in by_window.values()))
    ordered = sorted(by_window.items(), key=lambda item: (item[0] is not None, item[0] or 0))
    return tuple(
        LayerGroup(
            name="full" if window is None else f"sliding_{window}",
            window=window,
            layers=tuple(layers),
            pages_per_block=len(layers) // layers_per_page,
        )
        for window, layers in ordered
    )


def layers_per_page(groups: Sequence[LayerGroup]) -> int:
    """Layers whose keys and values one page holds; the same for every group of a plan."""
    return len(groups[0].layers) // groups[0].pages_per_block
