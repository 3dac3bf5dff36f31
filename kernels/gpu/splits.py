"""How decode divides a sequence: tiles of keys, and runs of tiles called splits.

    position   0 ......... first ..................... seq_len - 1
    tile       |    0    |    1    |    2    |    3    |              every TILE positions, counted from 0
    split                |         0         |    1    |              from the tile of ``first`` on

The split length follows from the sequence's own visible tiles, so that a sequence is divided alike in every batch: it
is ``MIN_TILES`` until that would make more than ``MAX_SPLITS`` splits, then it grows. The decode and the reduce
kernel each work the division out for themselves, so nothing about it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

# A split is worth a program of its own from this many tiles on.
MIN_TILES_PER_SPLIT = 4


@triton.jit
def divide(seq_len, WINDOW: tl.constexpr, TILE: tl.constexpr, MIN_TILES: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """The last row's first visible position, the tile that holds it, how many tiles follow, and tiles per split."""
    first = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    first_tile = first // TILE
    num_tiles = tl.cdiv(seq_len, TILE) - first_tile
    return first, first_tile, num_tiles, tl.maximum(tl.cdiv(num_tiles, MAX_SPLITS), MIN_TILES)


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """Bounds of the division for one model shape. ``min_tiles`` per split, at most ``max_splits`` per sequence."""

    min_tiles: int
    max_splits: int

    @classmethod
    def of(cls, num_kv_heads: int) -> SplitLimits:
        """Enough splits for one long sequence to fill a GPU, few enough to keep the partial results small."""
        return cls(MIN_TILES_PER_SPLIT, min(64, max(4, triton.next_power_of_2(128 // num_kv_heads))))

    def most_splits(self, max_seq_len: int, window: int | None, tile_keys: int) -> int:
        """How many splits the longest sequence of a batch can have."""
        visible = max_seq_len if window is None else min(max_seq_len, window + tile_keys - 1)
        return max(1, min(self.max_splits, -(-visible // (tile_keys * self.min_tiles))))
