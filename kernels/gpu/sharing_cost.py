"""Whether a step is over sooner when shared pages are read once: an estimate of its time with and without.

    time = max(launches of the host, products + attention + gaps between kernels)

Products and attention take what ``kernels.roofline`` says their bytes and FLOPs need at least. A step that replays a
graph launches once; one that shares prefixes can't, since which sequences share is not known when graphs are recorded,
so that its launches are the host's, one by one, beside the device's work. Layers with a window read what they see, and
share nothing. Pure arithmetic on numbers that the host has before the step is launched.

The times of launches are estimates, not measured. Real kernels take longer than their floors, so that fewer steps share
than could.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.roofline import AttentionShape, Cost, DataSheet

Array = np.ndarray[Any, Any]

LAUNCHES_PER_LAYER = 12  # see docs/gpu.md: norms, products, storing, attention in two, gate, sums
SHARING_LAUNCHES = 1  # more of them in a layer that shares: the prefix
LAUNCH_SECONDS = 15e-6  # of the host, for a kernel launched by itself, and for the Python around it
GAP_SECONDS = 1e-6  # of the device, from one kernel's end to the next one's full speed
PARTS_PER_MEMBER = 4  # partial rows of a head that are written and merged instead of read from pages
WORTHWHILE = 0.9  # of the time without sharing: less would be within what estimates are wrong by


@dataclass(frozen=True, slots=True)
class SharedReads:
    """What a plan saves: reads of the keys and values of ``num_tokens``, for partial rows of ``num_members``."""

    num_tokens: int
    num_members: int


@dataclass(frozen=True, slots=True)
class SharingCost:
    """One model on one kind of GPU. ``windows``: of each layer, None for those that see everything."""

    sheet: DataSheet
    shape: AttentionShape
    windows: tuple[int | None, ...]
    weight_bytes: int

    @property
    def least_gain(self) -> float:
        """Tokens that a group must save for each of its members, or its partial rows cost more than they save."""
        return self._part_bytes / self.shape.stored_bytes

    def pays(self, reads: SharedReads, seq_lens: Array, num_tokens: int, *, is_recorded: bool) -> bool:
        """Whether to share in a step of ``num_tokens`` tokens of sequences of ``seq_lens``, this step's included.

        ``is_recorded``: without sharing, the step replays a graph.
        """
        shared = self.seconds(seq_lens, num_tokens, reads=reads)
        return shared < WORTHWHILE * self.seconds(seq_lens, num_tokens, is_recorded=is_recorded)

    def seconds(
        self, seq_lens: Array, num_tokens: int, *, reads: SharedReads | None = None, is_recorded: bool = False
    ) -> float:
        """The time of a step; ``reads``: with these prefixes shared."""
        num_full = self.windows.count(None)
        seen = num_full * int(seq_lens.sum())
        for window in {window for window in self.windows if window is not None}:
            seen += self.windows.count(window) * int(np.minimum(seq_lens, window).sum())
        num_launches, parts = LAUNCHES_PER_LAYER * len(self.windows), 0
        if reads is not None:
            seen -= num_full * reads.num_tokens
            parts = num_full * reads.num_members * self._part_bytes
            num_launches += num_full * SHARING_LAUNCHES
        products = Cost(self.weight_bytes, num_tokens * self.weight_bytes)  # 2 FLOPs a weight of 2 bytes
        attention = Cost(seen * self.shape.stored_bytes + parts)
        device = self.sheet.floor_seconds(products) + self.sheet.floor_seconds(attention) + num_launches * GAP_SECONDS
        return device if is_recorded else max(device, num_launches * LAUNCH_SECONDS)

    @property
    def _part_bytes(self) -> int:
        """Written and read in float32, with a log-sum-exp each."""
        return 2 * PARTS_PER_MEMBER * self.shape.num_q_heads * (self.shape.head_dim + 1) * 4
