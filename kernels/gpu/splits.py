"""How decode divides a sequence: tiles of keys, and runs of tiles called splits.

    position   0 ......... first ..................... seq_len - 1
    tile       |    0    |    1    |    2    |    3    |              every TILE positions, counted from 0
    split                |         0         |    1    |              from the tile of ``first`` on

Two ways, chosen for a launch as a whole by a ``SplitPlan``, without asking the device for a length:

    balanced   as many splits as keep all multiprocessors busy, of equal length, but none shorter than ``split_tiles``.
               The number follows from the batch, so that a row's last bits may depend on its company.
    fixed      splits of exactly ``split_tiles`` tiles that begin at multiples of their length: the division follows
               from the sequence alone, and so do a row's bits.

The kernels of a launch each work the division out for themselves, so nothing about it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

# A split is worth a program of its own from this many tiles on, and its start and merge cost about as much as two.
MIN_SPLIT_TILES = 4
OVERHEAD_TILES = 2
MAX_SPLITS = 64
# A share of the time that is worth more splits, and so more parts to write, read and make room for.
WORTHWHILE = 1 / 16
# Positions to a fixed split: partial results stay below 2 % of the pages read, and a long context still has many.
FIXED_SPLIT = 2048
# Programs that a multiprocessor runs at a time, at the registers and shared memory of a decode tile.
PROGRAMS_PER_SM = 2
# What the interpreter is told it has.
INTERPRETED_SMS = 8


@triton.jit
def divide(first, end, num_splits, TILE: tl.constexpr, SPLIT_TILES: tl.constexpr, IS_FIXED: tl.constexpr):
    """Where splits of positions ``first : end`` begin to be counted, a multiple of TILE, and how long each is."""
    first_tile = first // TILE
    if IS_FIXED:
        return first_tile // SPLIT_TILES * SPLIT_TILES * TILE, SPLIT_TILES * TILE
    else:
        num_tiles = tl.cdiv(end, TILE) - first_tile
        return first_tile * TILE, tl.maximum(tl.cdiv(num_tiles, num_splits), SPLIT_TILES) * TILE


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The division of every sequence of a launch: ``num_splits`` at most, which the grid has room for."""

    num_splits: int
    split_tiles: int
    is_fixed: bool

    @classmethod
    def balanced(
        cls, *, num_sms: int, num_seqs: int, num_kv_heads: int, max_seq_len: int, window: int | None, tile_keys: int
    ) -> SplitPlan:
        """Splits that fill ``num_sms`` multiprocessors, as far as the batch and its longest sequence allow."""
        visible = max_seq_len if window is None else min(max_seq_len, window + tile_keys - 1)
        num_splits = choose_num_splits(num_sms * PROGRAMS_PER_SM, num_seqs * num_kv_heads, -(-visible // tile_keys))
        return cls(num_splits, MIN_SPLIT_TILES, is_fixed=False)

    @classmethod
    def fixed(cls, *, max_seq_len: int, window: int | None, tile_keys: int) -> SplitPlan:
        """Splits of ``FIXED_SPLIT`` positions, whatever the batch."""
        split_tiles = FIXED_SPLIT // tile_keys
        length = split_tiles * tile_keys
        visible = max_seq_len if window is None else min(max_seq_len, window + length - 1)
        return cls(max(1, -(-visible // length)), split_tiles, is_fixed=True)

    @property
    def constants(self) -> dict[str, Any]:
        """The constexprs of ``divide``, beside TILE."""
        return {"SPLIT_TILES": self.split_tiles, "IS_FIXED": self.is_fixed}


def choose_num_splits(num_slots: int, num_programs: int, num_tiles: int) -> int:
    """Splits of the longest sequence that end a launch soonest: at least 1, at most ``MAX_SPLITS``.

    ``num_slots`` programs run at a time; without splits there are ``num_programs``, each of ``num_tiles`` tiles. Time
    is counted in tiles: rounds of programs, times the tiles of one and what starting and merging it costs. The fewest
    splits win that are within ``WORTHWHILE`` of the fastest.
    """
    most = max(1, min(MAX_SPLITS, num_tiles // MIN_SPLIT_TILES))

    def time(num_splits: int) -> int:
        rounds = -(-num_programs * num_splits // num_slots)
        overhead = OVERHEAD_TILES if num_splits > 1 else 0
        return rounds * (-(-num_tiles // num_splits) + overhead)

    fastest = min(map(time, range(1, most + 1)))
    return next(splits for splits in range(1, most + 1) if time(splits) * (1 - WORTHWHILE) <= fastest)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors (NVIDIA) or compute units (AMD) of ``device``."""
    if device.type != "cuda":
        return INTERPRETED_SMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
