"""Products with weights as the models see them: what a backend may bring in place of torch's own.

Knows shapes only: nothing of models, of files or of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

Kind = TypeVar("Kind", bound=Enum)


class DenseProduct(Protocol):
    """A product with a weight of floats."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x W^T + b`` [num_rows, out_features], of x [num_rows, in_features] and W [out_features, in_features]."""


class ExpertProduct(Protocol):
    """A product of rows with float weights of experts, each row with its own expert's, in one go."""

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        offsets: torch.Tensor,
        token_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[num_rows, out_features] of ``weight`` [num_experts, out_features, in_features] and ``x`` [.., in_features].

        ``offsets`` and ``token_ids`` are those of ``kernels.grouping.Grouping``; without ``token_ids`` the rows of
        ``x`` are sorted by expert already.
        """


class KeptProduct(Protocol):
    """A product with a weight [rows, columns] that is kept in quantised form."""

    @property
    def nbytes(self) -> int: ...

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """[num_rows, rows] for ``x`` [num_rows, columns]."""


class KeptMatrix(Protocol):
    """A matrix [rows, columns] in quantised form, filled in runs of rows that begin at multiples of 16."""

    rows: int
    columns: int

    @property
    def nbytes(self) -> int: ...

    def pack_stored(self, first_row: int, rows: torch.Tensor, num_threads: int = 1) -> None:
        """Fill rows from ``first_row`` on from uint8 ``rows`` [num_rows, stored bytes] of a GGUF file, exactly."""

    def pack_floats(self, first_row: int, rows: torch.Tensor, num_threads: int = 1) -> None:
        """Quantise ``rows`` [num_rows, columns] into place."""

    def pack_codes(
        self,
        first_row: int,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        num_threads: int = 1,
    ) -> None:
        """Fill rows from ``first_row`` on from codes of a checkpoint, exactly: weight = scale * (code - zero).

        ``codes`` [num_rows, columns], one a byte: uint8 of 0 .. 15 in the form "codes4", int8 in "codes8", uint8 with
        the bits of float8_e4m3fn, no NaN, in "fp8", int8 that are twice a 4-bit float in "MXFP4", where scales are
        powers of two. ``scales`` float32 and ``zeros`` uint8, None where they are all 0 and in all forms but "codes4",
        [num_rows, groups]: of columns / groups columns each, a multiple of the ``group`` that the kind was asked for
        with.
        """

    def unpack(self, row_ids: torch.Tensor) -> torch.Tensor:
        """The weights of int64 ``row_ids`` [n], float32 [n, columns]."""

    def joined(self, others: Sequence[Any]) -> KeptProduct:
        """The product with this matrix and those that were made with it, their outputs one after the other."""


class WeightMemory(Protocol):
    """Where matrices in quantised form lie on the host."""

    def take(self, nbytes: int) -> torch.Tensor:
        """Uint8 [nbytes] for the next matrix, from a cache line on."""


class WeightKernels(Protocol[Kind]):
    """What a device can multiply in quantised form."""

    def kind(self, form: str, columns: int, group: int = 32) -> Kind | None:
        """How a weight of so many columns is kept whose form is ``form``; None where it can't be.

        ``form``: ggml's name of its bits in a file ("Q8_0"), "int8" or "int4" for floats to be quantised, or "codes4",
        "codes8" or "fp8" for `KeptMatrix.pack_codes`, of whose columns ``group`` share a scale: the more they are, the
        fewer bits a weight takes. "MXFP4" is filled either way. None where ``group`` is no multiple of 32 that divides
        ``columns``.
        """

    def lay_into(self, memory: WeightMemory) -> bool:
        """Have matrices that are made from now on lie in ``memory``; False where they lie on a device."""

    def matrices(
        self, kinds: Sequence[Kind], rows: Sequence[int], columns: int, device: torch.device
    ) -> Sequence[KeptMatrix] | None:
        """Matrices of one product, still to be filled; None where these kinds don't go together."""
