"""BlockTables: which pages hold the sequences of a step, one row per running request, on host and device.

    [column, row, block]      columns of all layer groups, one after the other

Each share of a step writes only the blocks it brings, so that a step's cost does not grow with its contexts. Rows hold
stale ids for blocks that slid out of a window; the kernels never look there. On another device lies a copy, which is
sent only what changed; there, rows of layers without a window are also kept in order of what they share. Knows rows and
page ids, not requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from block_manager.block_table import ChangedBlocks
from block_manager.groups import LayerGroup
from engine.prefix_order import PrefixOrder
from engine.step_buffers import TableChanges

Array = np.ndarray[Any, Any]


class BlockTables:
    """``num_rows`` rows of ``num_blocks`` blocks for every column of ``groups``; all null at first."""

    def __init__(
        self, groups: Sequence[LayerGroup], num_rows: int, num_blocks: int, device: torch.device | None
    ) -> None:
        """``device`` None: the tables of the host are those that kernels read."""
        first = 0
        self._columns = []
        for group in groups:
            self._columns.append(slice(first, first + group.pages_per_block))
            first += group.pages_per_block
        self.num_columns = first
        self.num_blocks = num_blocks
        host = torch.zeros(first, num_rows, num_blocks, dtype=torch.int32)
        self._pages: Array = host.numpy()
        self._flat: Array = self._pages.reshape(first, -1)
        self.device = device
        self._shown = host if device is None else torch.zeros_like(host, device=device)
        self._changes: list[tuple[Array, Array]] = []
        has_order = device is not None and groups[0].window is None  # of all groups, the first has none, if any
        self.prefix_order = PrefixOrder(self._pages[0]) if has_order else None

    def column(self, group: int, number: int) -> int:
        """Where column ``number`` of a group is among all."""
        return self._columns[group].start + number

    def write(self, row: int, changed: ChangedBlocks) -> None:
        """Note the pages of the blocks from ``changed.first`` on."""
        start = changed.first
        if self.prefix_order is not None:
            self.prefix_order.note(row, start, start + len(changed.pages[0]))
        for columns, blocks in zip(self._columns, changed.pages, strict=bool(changed.pages)):
            end = start + len(blocks)
            pages = np.array(blocks, dtype=np.int32).T
            self._pages[columns, row, start:end] = pages
            if self.device is not None and end > start:
                numbers = np.arange(columns.start, columns.stop, dtype=np.int64)[:, None]
                indices = (numbers * self._pages.shape[1] + row) * self.num_blocks + np.arange(start, end)
                self._changes.append((indices.ravel(), pages.ravel()))

    def lookup(self, rows: Array, blocks: Array) -> Array:
        """The pages that hold block ``blocks[i]`` of row ``rows[i]``: int32 [columns, len(rows)]."""
        return np.take(self._flat, rows * self.num_blocks + blocks, axis=1)

    def take_changes(self) -> TableChanges[Array] | None:
        """What the device has not been sent, the newest value of each entry; None where it has all."""
        if not self._changes:
            return None
        indices = np.concatenate([indices for indices, _ in self._changes])
        values = np.concatenate([values for _, values in self._changes])
        self._changes.clear()
        newest, places = np.unique(indices[::-1], return_index=True)
        if len(newest) < len(indices):  # a row that was given away and taken in the same step
            indices, values = newest, values[::-1][places]
        return TableChanges(indices, values)

    def apply(self, changes: TableChanges[torch.Tensor]) -> None:
        """Bring the device's tables up to date."""
        self._shown.view(-1).index_copy_(0, changes.indices, changes.values)

    def of_rows(self, rows: torch.Tensor, num_blocks: int) -> torch.Tensor:
        """The first ``num_blocks`` blocks of ``rows``: int32 [columns, len(rows), num_blocks]."""
        if self.device is None:  # by numpy: torch wakes all threads for a few thousand entries
            return torch.from_numpy(np.ascontiguousarray(self._pages[:, rows.numpy(), :num_blocks]))
        return self._shown[:, :, :num_blocks].index_select(1, rows)
