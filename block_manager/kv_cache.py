"""KVCache: the page tensors themselves, the only module here that imports torch.

One pair of tensors per layer *slot* of a page; layer number j of a group (counted within the group) lives in column
j // layers_per_page of the group's blocks, in slot j % layers_per_page of those pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from block_manager.groups import LayerGroup, layers_per_page
from block_manager.sizing import page_bytes


class KVCache:
    """Keys and values of ``num_pages`` pages, plus the null page 0 that is never read or written.

    ``key_pages[slot]`` and ``value_pages[slot]``: [num_pages + 1, num_kv_heads, block_size, head_dim]. Memory is
    reserved but not touched, so that a large budget costs nothing before its pages are used.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        num_pages: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_bytes = page_bytes(groups, block_size, num_kv_heads, head_dim, dtype.itemsize)
        shape = (num_pages + 1, num_kv_heads, block_size, head_dim)
        slots = layers_per_page(groups)
        self.key_pages = [torch.empty(shape, dtype=dtype, device=device) for _ in range(slots)]
        self.value_pages = [torch.empty(shape, dtype=dtype, device=device) for _ in range(slots)]
        self._place: dict[int, tuple[int, int, int]] = {
            layer: (group_index, j // slots, j % slots)
            for group_index, group in enumerate(groups)
            for j, layer in enumerate(group.layers)
        }

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that has a page's contents, indexed by page id in its first dimension."""
        return [*self.key_pages, *self.value_pages]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole pages within this cache, all layers at once."""
        self.copy_from(self, sources, targets)

    def copy_from(self, other: KVCache, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy pages ``sources`` of ``other``, which may be on another device, into pages ``targets`` here."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            pages = theirs[torch.tensor(sources, device=theirs.device)]
            mine[torch.tensor(targets, device=mine.device)] = pages.to(mine.device)

    def place(self, layer: int) -> tuple[int, int, int]:
        """(group, column, slot) of a layer of the model."""
        return self._place[layer]
