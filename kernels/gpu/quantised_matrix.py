"""DeviceMatrix: a weight that is kept in quantised form on a GPU, and what multiplies it.

    INT8    from floats: one scale per output                           8 bits a weight
    INT4    from floats: groups of 128 inputs, or 64 or 32              4.25 bits, or 4.5 or 5
    Q8_0    as a GGUF file has it, bit by bit: groups of 32, float16    8.5 bits
    Q4_0    as a GGUF file has it, bit by bit: groups of 32, float16    4.5 bits
    CODES4  as a checkpoint publishes them: scales and zeros of 128     4.31 bits, or 4.63 or 5.25
            inputs, or of 64 or 32
    CODES8  likewise: one scale per output, or of 32 inputs; MXFP4      8 bits or 9

Matrices of one product (query, key and value) lie one after the other and are multiplied in one launch. Holds the
layout of ``kernels.gpu.quantised_gemm``; norms and gates are not its business.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch

from kernels import mxfp4
from kernels.gpu.quantised_gemm import INT4_GROUPS, QuantisedWeight, quantised_gemm
from kernels.products import WeightMemory

_STORED_GROUP = 32
_PACKED_AT_ONCE = 1 << 24  # weights: their floats take 64 MiB, a few times over, while they are quantised
_SCALE_BYTES = 2  # the float16 that begins each group of a file


class DeviceKind(Enum):
    """How a weight is kept."""

    INT8 = "int8"
    INT4 = "int4"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    CODES4_128 = "codes4 in groups of 128"
    CODES4_64 = "codes4 in groups of 64"
    CODES4_32 = "codes4 in groups of 32"
    CODES8 = "codes8"
    CODES8_32 = "codes8 in groups of 32"

    @property
    def is_stored(self) -> bool:
        """Whether it is that of a file's tensors."""
        return self in (DeviceKind.Q8_0, DeviceKind.Q4_0)

    @property
    def has_zeros(self) -> bool:
        return self in (DeviceKind.CODES4_128, DeviceKind.CODES4_64, DeviceKind.CODES4_32)

    @property
    def bits(self) -> int:
        return 4 if self in (DeviceKind.INT4, DeviceKind.Q4_0) or self.has_zeros else 8


class DeviceMatrix:
    """``rows`` rows of the weight of a product, from ``first_row`` on, still to be filled."""

    def __init__(self, kind: DeviceKind, product: DeviceProduct, first_row: int, rows: int) -> None:
        self.kind = kind
        self.rows, self.columns = rows, product.weight.in_features
        self.weight = product.weight.rows(slice(first_row, first_row + rows))
        self._product = product

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def pack_stored(self, first_row: int, rows: torch.Tensor, num_threads: int = 1) -> None:
        """Fill rows from ``first_row`` on from uint8 ``rows`` [num_rows, stored bytes] of a tensor of this kind.

        Codes of 8 bits are those of a tensor in MXFP4.
        """
        if self.kind in (DeviceKind.CODES8, DeviceKind.CODES8_32):
            self.pack_codes(first_row, *mxfp4.stored_codes(rows))
            return
        assert self.kind.is_stored
        group_bytes = _SCALE_BYTES + _STORED_GROUP * self.kind.bits // 8
        groups = rows.view(len(rows), -1, group_bytes)
        codes = groups[..., _SCALE_BYTES:].contiguous().view(self.weight.codes.dtype)
        scales = groups[..., :_SCALE_BYTES].contiguous().view(torch.float16)
        self._put(first_row, codes.flatten(1), scales.flatten(1))

    def pack_floats(self, first_row: int, rows: torch.Tensor, num_threads: int = 1) -> None:
        """Quantise ``rows`` [num_rows, columns] into place, on the device."""
        assert not self.kind.is_stored
        for start in range(0, len(rows), step := max(1, _PACKED_AT_ONCE // self.columns)):
            some = rows[start : start + step].to(self.weight.codes.device)
            made = QuantisedWeight.int4(some, self.weight.group) if self.weight.group else QuantisedWeight.int8(some)
            self._put(first_row + start, made.codes, made.scales)

    def pack_codes(
        self,
        first_row: int,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        num_threads: int = 1,
    ) -> None:
        """Fill rows from ``first_row`` on from codes: see ``kernels.products.KeptMatrix``."""
        kept = self.weight
        repeats = kept.scales.shape[1] // scales.shape[1]
        if self.kind.has_zeros:
            low, high = codes.view(torch.uint8).unflatten(1, (-1, kept.group)).chunk(2, dim=2)
            codes = (low | high << 4).flatten(1)
            zeros = torch.zeros(scales.shape, dtype=torch.uint8) if zeros is None else zeros
            assert kept.zeros is not None
            kept.zeros[first_row : first_row + len(codes)].copy_(zeros.repeat_interleave(repeats, dim=1))
        self._put(first_row, codes.view(kept.codes.dtype), scales.repeat_interleave(repeats, dim=1))

    def unpack(self, row_ids: torch.Tensor) -> torch.Tensor:
        """The weights of int64 ``row_ids`` [n], float32 [n, columns]."""
        return self.weight.rows(row_ids).values()

    def joined(self, others: Sequence[DeviceMatrix]) -> DeviceProduct:
        """The product of all matrices that were made with this one."""
        assert all(other._product is self._product for other in others)
        return self._product

    def _put(self, first_row: int, codes: torch.Tensor, scales: torch.Tensor) -> None:
        place = slice(first_row, first_row + len(codes))
        self.weight.codes[place].copy_(codes)
        self.weight.scales[place].copy_(scales)


class DeviceProduct:
    """``x W^T`` of a whole weight; ``is_deterministic``: a row's bits do not depend on their number."""

    def __init__(self, weight: QuantisedWeight, *, is_deterministic: bool) -> None:
        self.weight = weight
        self._is_deterministic = is_deterministic

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """[num_rows, rows] in the dtype of ``x`` [num_rows, columns]."""
        return quantised_gemm(x, self.weight, is_deterministic=self._is_deterministic)


class DeviceKernels:
    """Implements ``kernels.products.WeightKernels``."""

    def __init__(self, *, is_deterministic: bool) -> None:
        self._is_deterministic = is_deterministic

    def kind(self, form: str, columns: int, group: int = _STORED_GROUP) -> DeviceKind | None:
        """INT8 takes any number of columns, all others whole groups of 32. MXFP4 is kept in whole numbers of a byte."""
        if form == "MXFP4":
            form = "codes8"
        if form == "codes4":
            form = f"codes4 in groups of {next((size for size in (128, 64, 32) if group % size == 0), 0)}"
        elif form == "codes8" and group != columns:
            form = "codes8 in groups of 32"
        kind = next((one for one in DeviceKind if one.value == form), None)
        if kind in (DeviceKind.INT8, None):
            return kind
        return None if group % _STORED_GROUP or columns % group else kind

    def lay_into(self, memory: WeightMemory) -> bool:
        return False

    def matrices(
        self, kinds: Sequence[DeviceKind], rows: Sequence[int], columns: int, device: torch.device
    ) -> list[DeviceMatrix] | None:
        """Of one kind; a product of several kinds is none."""
        if len(set(kinds)) != 1:
            return None
        kind = kinds[0]
        group = _group(kind, columns)
        whole = QuantisedWeight(
            torch.empty(
                sum(rows), columns * kind.bits // 8, dtype=torch.int8 if kind.bits == 8 else torch.uint8, device=device
            ),
            torch.empty(
                sum(rows),
                columns // group if group else 1,
                dtype=torch.float16 if kind.is_stored else torch.float32,
                device=device,
            ),
            group,
            torch.empty(sum(rows), columns // group, dtype=torch.uint8, device=device) if kind.has_zeros else None,
        )
        product = DeviceProduct(whole, is_deterministic=self._is_deterministic)
        starts = [sum(rows[:place]) for place in range(len(rows))]
        return [DeviceMatrix(kind, product, start, count) for start, count in zip(starts, rows, strict=True)]


def _group(kind: DeviceKind, columns: int) -> int:
    """Inputs that share a scale; 0: all of them."""
    if kind in (DeviceKind.INT8, DeviceKind.CODES8):
        return 0
    if kind.has_zeros:
        return {DeviceKind.CODES4_128: 128, DeviceKind.CODES4_64: 64}.get(kind, 32)
    if kind is DeviceKind.INT4:
        return max(group for group in INT4_GROUPS if columns % group == 0)
    return _STORED_GROUP
