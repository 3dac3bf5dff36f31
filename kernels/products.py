"""Products with weights as the models see them: what a backend may bring in place of torch's own.

Knows shapes only: nothing of models, of files or of devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class DenseProduct(Protocol):
    """A product with a weight of floats."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x W^T + b`` [num_rows, out_features], of x [num_rows, in_features] and W [out_features, in_features]."""
