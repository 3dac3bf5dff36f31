"""PageShape: how large the pages of a model are, and what fits into how many of them.

The arithmetic by which an engine cuts its pages and `octavo inspect` answers. Knows groups and bytes, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from block_manager.groups import LayerGroup, plan_groups
from block_manager.sizing import Capacity, page_bytes, row_scale_bytes
from models.spec import ModelSpec

CPU_MEMORY_SHARE = 0.4  # of what is available after the weights: the machine has other tenants
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8_e4m3": 1}  # by KV dtype


@dataclass(frozen=True, slots=True)
class PageShape:
    """Pages of ``block_size`` positions; a row is the key or value of one head at one of them."""

    groups: tuple[LayerGroup, ...]
    block_size: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int

    @classmethod
    def of(cls, spec: ModelSpec, block_size: int, element_bytes: int) -> PageShape:
        groups = plan_groups([layer.window for layer in spec.layers])
        return cls(groups, block_size, spec.num_kv_heads, spec.head_dim, element_bytes)

    @property
    def page_bytes(self) -> int:
        scale = row_scale_bytes(self.element_bytes)
        return page_bytes(self.groups, self.block_size, self.num_kv_heads, self.head_dim, self.element_bytes, scale)

    def token_bytes(self, *, windowed: bool) -> int:
        """Keys and values of one token in all layers with a window, or in all that have none."""
        row = self.head_dim * self.element_bytes + row_scale_bytes(self.element_bytes)
        layers = sum(len(group.layers) for group in self.groups if (group.window is not None) == windowed)
        return 2 * layers * self.num_kv_heads * row

    def sequence_pages(self, num_tokens: int) -> int:
        """Most pages that a sequence holds while it grows to ``num_tokens``, a token at a time."""
        return self._capacity(0).peak_pages(num_tokens, 1)

    def longest(self, num_pages: int, limit: int) -> int:
        """The longest sequence of at most ``limit`` tokens that fits alone into so many pages; 0: none."""
        capacity = self._capacity(num_pages)
        return capacity.max_tokens(limit) if capacity.fits(1) else 0

    def _capacity(self, num_pages: int) -> Capacity:
        return Capacity(self.groups, self.block_size, num_pages, 1)
