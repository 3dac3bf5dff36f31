"""Embedding: a table of vectors, one for each token or each position."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.products import KeptMatrix
from models.matrix_product import MatrixProduct
from models.parameter import NamedParameters, Parameter
from models.weight_place import WeightPlace


class Embedding:
    """Rows of a table, times a scale that is rounded to the table's dtype as Gemma's was in training.

    With a tied ``head``, the head's product is of the same table: kept in quantised form, there is one copy of it.
    """

    def __init__(
        self,
        rows: int,
        size: int,
        scale: float,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.place = WeightPlace(rows, size, dtype=dtype, device=device)
        self._kept: KeptMatrix | None = None
        self._scale = torch.tensor(scale, dtype=dtype).item()
        self._dtype = dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._kept is not None:
            rows = self._kept.unpack(token_ids).to(self._dtype)
        else:
            rows = F.embedding(token_ids, self.place.tensor)
        return rows if self._scale == 1.0 else rows.mul_(self._scale)

    @property
    def nbytes(self) -> int:
        return self.place.nbytes if self._kept is None else self._kept.nbytes

    def parameters(self, name: str, head: MatrixProduct | None) -> NamedParameters:
        """The table; where ``head`` is tied to it, the head's as well."""

        def keep(matrix: KeptMatrix, order: torch.Tensor | None) -> None:
            assert order is None, "rows of a table are looked up whole"
            self._kept = matrix
            if head is not None:
                head.keep(0, matrix)

        # without a head of its own the table is told apart from others by its own method
        when_filled = self._stay if head is None else head.pack
        place = self.place
        yield (
            f"{name}.weight",
            Parameter(lambda: place.tensor, (place.rows, place.columns), when_filled=when_filled, keep=keep),
        )

    def _stay(self) -> None:
        """A table that nothing multiplies with is looked up as it was filled."""
