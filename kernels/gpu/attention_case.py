"""What a model and its engine ask of attention, as far as it decides how kernels are compiled; and a list to compile.

``CASES`` covers, in pairs, what models are made of: head dims 64 to 256, 1 to 8 query heads to a KV head, dtypes of
pages, windows, softcaps, sinks, and the deterministic mode. Nothing here runs a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.gpu.pages import page_constants, page_types
from kernels.gpu.tile import TileShape
from kernels.gpu.variant import pointer


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One model shape. ``group`` query heads read one KV head; ``window`` 0 means none."""

    head_dim: int
    group: int
    dtype: torch.dtype
    pages_dtype: torch.dtype
    block_size: int = 16
    window: int = 0
    has_softcap: bool = False
    has_sinks: bool = False
    is_deterministic: bool = False

    @property
    def name(self) -> str:
        """Like ``128:g4:bfloat16/int8:window+sinks``, with ``plain`` for no feature."""
        features = {
            "window": self.window > 0,
            "softcap": self.has_softcap,
            "sinks": self.has_sinks,
            "deterministic": self.is_deterministic,
        }
        dtypes = "/".join(str(dtype).removeprefix("torch.") for dtype in (self.dtype, self.pages_dtype))
        named = "+".join(feature for feature, is_on in features.items() if is_on)
        return f"{self.head_dim}:g{self.group}:{dtypes}:{named or 'plain'}"

    @property
    def shares_prefixes(self) -> bool:
        """Whether the shared-prefix kernels serve it."""
        return not self.window and not self.is_deterministic

    @property
    def types(self) -> dict[str, str | None]:
        """Types of the arguments that the attention kernels have in common."""
        return {
            **page_types(self.pages_dtype),
            "query_ptr": pointer(self.dtype),
            "query_start_loc_ptr": "*i32",
            "seq_lens_ptr": "*i32",
            "block_table_ptr": "*i32",
            "sinks_ptr": "*fp32" if self.has_sinks else None,
            "scale": "fp32",
            "softcap_log2": "fp32",
        }

    def constants(self, tile: TileShape) -> dict[str, Any]:
        """The constexprs that the attention kernels have in common."""
        return {
            **page_constants(self.pages_dtype, self.block_size, self.head_dim),
            "GROUP": self.group,
            "HAS_SOFTCAP": self.has_softcap,
            "ROWS": tile.rows,
            "TILE": tile.keys,
        }


BF16, FP16, FP32, INT8, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.float8_e4m3fn
CASES = (
    AttentionCase(64, 8, BF16, BF16),
    AttentionCase(64, 1, FP16, INT8, block_size=32, window=1024, has_sinks=True),
    AttentionCase(80, 1, BF16, BF16),
    AttentionCase(80, 4, BF16, INT8, has_softcap=True),
    AttentionCase(96, 4, BF16, FP8, window=1024),
    AttentionCase(96, 8, FP16, FP16, block_size=64, has_softcap=True),
    AttentionCase(128, 4, BF16, BF16),
    AttentionCase(128, 8, BF16, BF16, window=1024, has_softcap=True, has_sinks=True),
    AttentionCase(128, 8, BF16, BF16, is_deterministic=True),
    AttentionCase(128, 4, BF16, INT8, has_softcap=True, is_deterministic=True),
    AttentionCase(128, 8, BF16, FP8, block_size=32),
    AttentionCase(128, 1, FP16, FP8, has_sinks=True),
    AttentionCase(128, 4, FP32, FP32, window=1024),
    AttentionCase(128, 4, FP32, INT8),
    AttentionCase(256, 4, BF16, BF16),
    AttentionCase(256, 4, BF16, BF16, window=1024),
    AttentionCase(256, 4, BF16, BF16, is_deterministic=True),
    AttentionCase(256, 2, BF16, INT8, window=1024, has_softcap=True),
    AttentionCase(256, 8, BF16, FP8, block_size=64),
    AttentionCase(128, 4, BF16, FP32),
    AttentionCase(256, 8, BF16, FP32),
)
