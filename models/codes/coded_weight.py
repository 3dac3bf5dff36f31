"""CodedWeight: a matrix as codes with a scale for each group of columns, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from models.tensor_names import Rows


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """``weight = scale * (code - zero)``, [rows, columns].

    ``codes`` [rows, columns] are uint8, int8 or float8_e4m3fn; ``scales`` float32 [rows, groups], of equally many
    columns each; ``zeros`` uint8 [rows, groups], or None for 0. ``order`` int64 [columns], where there is one, says
    which input each column of codes belongs to.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    order: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def stored_bytes(self) -> int:
        """What a file holds for it, about: scales and zeros in half the bytes they have here."""
        bits = 4 if self.zeros is not None else 8
        return self.codes.numel() * bits // 8 + self.scales.numel() * 2

    def part(self, rows: Rows | None) -> CodedWeight:
        """Some rows, in their order."""
        if rows is None:
            return self
        index = rows if isinstance(rows, slice) else torch.from_numpy(rows)
        zeros = None if self.zeros is None else self.zeros[index]
        return CodedWeight(self.codes[index], self.scales[index], zeros, self.order)

    def values(self) -> torch.Tensor:
        """Float32 [rows, columns], its columns in the order of inputs."""
        num_rows, num_columns = self.codes.shape
        groups = self.codes.float().view(num_rows, self.scales.shape[1], -1)
        if self.zeros is not None:
            groups = groups - self.zeros[..., None].float()
        values = (groups * self.scales[..., None]).view(num_rows, num_columns)
        if self.order is None:
            return values
        ordered = torch.empty_like(values)
        ordered[:, self.order] = values
        return ordered
