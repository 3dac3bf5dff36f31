"""WeightPlace: memory for a weight of floats, taken when somebody first asks for it.

So that a model whose weights are kept in another form never needs the memory of floats, not even while it is loaded.
"""

from __future__ import annotations

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
            self._tensor = torch.empty(self.rows, self.columns, dtype=self.dtype, device=self.device)
        return self._tensor

    @property
    def nbytes(self) -> int:
        """What it takes, or would."""
        return self.rows * self.columns * self.dtype.itemsize

    def part(self, start: int, end: int) -> torch.Tensor:
        """A view of the rows ``start`` to ``end``."""
        return self.tensor[start:end]
