"""WeightPlace: memory for a weight of floats, taken when somebody first asks for it.

So that a model whose weights are kept in another form never needs the memory of floats, not even while it is loaded. On
CPUs it is taken from the system, page by page, and goes back there as soon as nobody holds it: an allocator would keep
what a packed weight leaves, and loading would take twice the model's memory.
"""

from __future__ import annotations

import mmap

import torch


class WeightPlace:
    """A matrix [rows, columns], uninitialised once it is there."""

    def __init__(self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.rows, self.columns = rows, columns
        self.dtype, self.device = dtype, device
        self._tensor: torch.Tensor | None = None

    @classmethod
    def of(cls, weight: torch.Tensor) -> WeightPlace:
        """The place of a weight that is there."""
        place = cls(*weight.shape, dtype=weight.dtype, device=weight.device)
        place._tensor = weight
        return place

    @property
    def tensor(self) -> torch.Tensor:
        if self._tensor is None:
            self._tensor = self._taken()
        return self._tensor

    def _taken(self) -> torch.Tensor:
        if self.device.type != "cpu" or not self.nbytes:
            return torch.empty(self.rows, self.columns, dtype=self.dtype, device=self.device)
        memory = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(memory, dtype=self.dtype).view(self.rows, self.columns)

    @property
    def nbytes(self) -> int:
        """What it takes, or would."""
        return self.rows * self.columns * self.dtype.itemsize

    def part(self, start: int, end: int) -> torch.Tensor:
        """A view of the rows ``start`` to ``end``."""
        return self.tensor[start:end]
