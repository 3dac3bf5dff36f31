"""KVCache: the page tensors themselves, the only module here that imports torch.

One pair of tensors per layer *slot* of a page, and for one-byte dtypes, which are quantised, a pair of scales beside
it; layer number j of a group (counted within the group) lives in column j // layers_per_page of the group's blocks, in
slot j % layers_per_page of those pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from mmap import PAGESIZE

import torch

from block_manager.groups import LayerGroup, layers_per_page
from block_manager.sizing import page_bytes, row_scale_bytes

SCALE_DTYPE = torch.float32


def scale_bytes(dtype: torch.dtype) -> int:
    """Bytes of scale beside each key and value row: none but for the quantised, one-byte dtypes."""
    return row_scale_bytes(dtype.itemsize)


class KVCache:
    """Keys and values of ``num_pages`` pages, plus the null page 0 that is never read or written.

    ``key_pages[slot]`` and ``value_pages[slot]``: [num_pages + 1, num_kv_heads, block_size, head_dim]. ``key_scales``
    and ``value_scales`` are empty, or for quantised pages likewise float32 [num_pages + 1, num_kv_heads, block_size].
    Memory is reserved but not touched, so that a large budget costs nothing before its pages are used, or `touch` is.
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
        self.page_bytes = page_bytes(groups, block_size, num_kv_heads, head_dim, dtype.itemsize, scale_bytes(dtype))
        slots = layers_per_page(groups)

        def reserve(count: int, dtype: torch.dtype, *row: int) -> list[torch.Tensor]:
            shape = (num_pages + 1, num_kv_heads, block_size, *row)
            return [torch.empty(shape, dtype=dtype, device=device) for _ in range(count)]

        self.key_pages = reserve(slots, dtype, head_dim)
        self.value_pages = reserve(slots, dtype, head_dim)
        self.key_scales = reserve(slots if scale_bytes(dtype) else 0, SCALE_DTYPE)
        self.value_scales = reserve(slots if scale_bytes(dtype) else 0, SCALE_DTYPE)
        self._place: dict[int, tuple[int, int, int]] = {
            layer: (group_index, j // slots, j % slots)
            for group_index, group in enumerate(groups)
            for j, layer in enumerate(group.layers)
        }

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor with one entry per page, along its first dimension: to move a page is to copy all of these."""
        return [*self.key_pages, *self.value_pages, *self.key_scales, *self.value_scales]

    def slot_tensors(self, slot: int) -> tuple[torch.Tensor, ...]:
        """Key pages and value pages of a slot, then its key scales and value scales where pages are quantised."""
        kinds = (self.key_pages, self.value_pages, self.key_scales, self.value_scales)
        return tuple(tensors[slot] for tensors in kinds if tensors)

    def touch(self, pages: Sequence[int]) -> None:
        """Have the system give memory to whole pages on the CPU, which a first write would wait for; zeros go there."""
        ids = torch.tensor(pages)
        for tensor in self.tensors():
            tensor.view(torch.uint8).flatten(1)[:, ::PAGESIZE][ids] = 0

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
