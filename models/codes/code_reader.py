"""Readers of coded weights: from the tensors that published files hold for one matrix to a CodedWeight.

Layouts, of a matrix [rows, columns] with a scale for each row and each of its groups of columns:

    GPTQ                qweight int32 [columns / n, rows], n codes of consecutive columns in each, the first lowest
                        qzeros int32 [groups, rows / n], scales [groups, rows], g_idx int32 [columns]: a column's group
    AWQ                 qweight int32 [columns, rows / 8], 8 codes of consecutive rows in each: 0 2 4 6 1 3 5 7
                        qzeros int32 [groups, rows / 8] likewise, scales [groups, rows]
    compressed-tensors  weight_packed int32 [rows, columns / n], codes less half their range, the first lowest, or
                        weight [rows, columns]; weight_scale [rows, groups], [rows, 1] or [1];
                        weight_zero_point int32 [rows / n, groups] packed along rows; weight_g_idx as GPTQ's
    mxfp4               blocks uint8 [rows, groups, 16], two 4-bit floats in a byte, the first lowest; scales uint8
                        [rows, groups], exponents (``kernels.mxfp4``)
    fp8                 weight [rows, columns]; weight_scale_inv for each block of [128, 128], or weight_scale

Sources: the AutoGPTQ, AutoAWQ and compressed-tensors projects, and transformers' documentation of ``fp8``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from kernels import mxfp4
from models.codes.coded_weight import CodedWeight
from models.codes.codes_spec import CodesForm, CodesMethod, CodesSpec
from models.codes.mxfp4 import ENDINGS
from models.errors import CheckpointError

Parts = Mapping[str, torch.Tensor]
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where each of 8 consecutive codes lies in its int32
_SUFFIXES = {
    CodesMethod.GPTQ: ("qweight", "qzeros", "scales", "g_idx"),
    CodesMethod.AWQ: ("qweight", "qzeros", "scales"),
    CodesMethod.COMPRESSED_TENSORS: (
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
        "input_scale",
        "input_zero_point",
        "input_global_scale",
    ),
    CodesMethod.MXFP4: ENDINGS,
    CodesMethod.FP8: ("weight_scale_inv", "weight_scale", "input_scale", "activation_scale"),
}
_IGNORED = ("k_scale", "v_scale", "q_scale", "k_proj.output_scale", "v_proj.output_scale")
_FP8_BLOCK = 128
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (torch.uint8, torch.int8, torch.int32, torch.int64)


class CodeReader:
    """Reads the coded weights of one checkpoint, as its ``codes`` say.

    ``suffixes`` are the endings of a matrix's tensors, behind its name and a dot.
    """

    def __init__(self, codes: CodesSpec) -> None:
        self.codes = codes
        self.suffixes = _SUFFIXES[codes.method]
        self._read: Callable[[Parts], CodedWeight] = {
            CodesMethod.GPTQ: self._gptq,
            CodesMethod.AWQ: self._awq,
            CodesMethod.COMPRESSED_TENSORS: self._compressed_tensors,
            CodesMethod.FP8: self._fp8,
            CodesMethod.MXFP4: self._mxfp4,
        }[codes.method]

    def read(self, name: str, parts: Parts) -> CodedWeight:
        """The matrix ``name`` of the tensors ``parts``, by their endings ("weight" among them where there is one).

        Raises CheckpointError, with the name, where they do not fit together.
        """
        self._check_values(name, parts)
        try:
            return self._read(parts)
        except KeyError as error:
            raise CheckpointError(f"the coded weight {name!r} lacks its tensor {error}") from None
        except (RuntimeError, ValueError, IndexError, TypeError, ZeroDivisionError):
            shapes = ", ".join(f"{part} {tuple(values.shape)}" for part, values in parts.items())
            raise CheckpointError(f"the tensors of the coded weight {name!r} do not fit together: {shapes}") from None

    def group_columns(self, name: str, parts: Parts) -> int:
        """Columns that share a scale, in the matrix ``name``, by the shapes of its tensors. Raises CheckpointError."""
        if self.codes.method is CodesMethod.MXFP4:
            return mxfp4.GROUP
        try:
            return self._columns(parts) // self._num_groups(parts)
        except (KeyError, IndexError, ZeroDivisionError):
            raise CheckpointError(f"the coded weight {name!r} lacks some of its tensors") from None

    def order(self, name: str, parts: Parts) -> torch.Tensor | None:
        """See `CodedWeight.order`, of the matrix ``name``. Raises CheckpointError."""
        groups = _groups_of_columns(parts)
        if groups is None:
            return None
        try:
            return _order(groups, self._columns(parts), self._num_groups(parts))
        except (KeyError, IndexError, ValueError):
            raise CheckpointError(
                f"the coded weight {name!r} has an index that does not give each group equally many columns"
            ) from None

    def _check_values(self, name: str, parts: Parts) -> None:
        """Refuse what would be read as other numbers than it was meant as, or has none."""
        for ending, values in parts.items():
            where = f"the tensor {name + '.' + ending!r}"
            if values.dtype not in self._types(ending):
                raise CheckpointError(f"{where} is stored as {str(values.dtype).removeprefix('torch.')}")
            is_damaged = values.view(torch.uint8) & 0x7F == 0x7F if values.dtype == torch.float8_e4m3fn else None
            if is_damaged is None and values.is_floating_point():
                is_damaged = ~values.isfinite()
            if is_damaged is not None and bool(is_damaged.any()):
                raise CheckpointError(f"{where} has values that are no finite numbers")

    def _types(self, ending: str) -> Sequence[torch.dtype]:
        """Those in which the tensors with this ``ending`` come."""
        if ending in ("blocks", "weight_shape") or ending.endswith("g_idx"):
            return _WHOLE
        if ending == "weight":
            return (torch.float8_e4m3fn,) if self.codes.form is CodesForm.FP8 else (torch.int8,)
        if ending in ("qweight", "qzeros", "weight_packed", "weight_zero_point") and self.codes.is_packed:
            return (torch.int32,)
        if self.codes.method is CodesMethod.MXFP4 or ending.endswith("zero_point"):
            return _WHOLE
        return _FLOATS

    def _columns(self, parts: Parts) -> int:
        if self.codes.method is CodesMethod.GPTQ:
            return parts["qweight"].shape[0] * (32 // self.codes.bits)
        if self.codes.method is CodesMethod.AWQ:
            return parts["qweight"].shape[0]
        return int(parts["weight_shape"][1]) if self.codes.is_packed else parts["weight"].shape[1]

    def _num_groups(self, parts: Parts) -> int:
        if "scales" in parts:
            return parts["scales"].shape[0]
        scales = parts.get("weight_scale", parts.get("weight_scale_inv"))
        return scales.shape[1] if scales is not None and scales.ndim == 2 else 1

    def _gptq(self, parts: Parts) -> CodedWeight:
        codes = _unpacked(parts["qweight"].T, self.codes.bits)
        scales = parts["scales"].T.float()
        zeros = _unpacked(parts["qzeros"], self.codes.bits).T + self.codes.zero_offset
        return self._in_groups(parts, codes, scales, zeros)

    def _in_groups(self, parts: Parts, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> CodedWeight:
        groups = _groups_of_columns(parts)
        if groups is None and self.codes.has_index:
            raise KeyError("g_idx" if self.codes.method is CodesMethod.GPTQ else "weight_g_idx")
        order = None if groups is None else _order(groups, codes.shape[1], scales.shape[1])
        if order is not None:
            codes = codes[:, order]
        if self.codes.form is CodesForm.INT8:
            return _signed(codes, scales, zeros, order)
        return _checked(codes, scales, zeros, order)

    def _awq(self, parts: Parts) -> CodedWeight:
        order = torch.tensor(_AWQ_ORDER)
        codes, zeros = (
            _unpacked(parts[name], 4).view(len(parts[name]), -1, 8)[..., order].flatten(1)
            for name in ("qweight", "qzeros")
        )
        return _checked(codes.T, parts["scales"].T.float(), zeros.T, None)

    def _compressed_tensors(self, parts: Parts) -> CodedWeight:
        if not self.codes.is_packed:
            return _plain(parts, "weight_scale")
        rows, columns = (int(size) for size in parts["weight_shape"])
        half = 1 << (self.codes.bits - 1)
        codes = _unpacked(parts["weight_packed"], self.codes.bits)
        if len(codes) != rows or not 0 <= codes.shape[1] - columns < 32 // self.codes.bits:
            raise ValueError("another shape than it says")
        codes = codes[:, :columns]
        scales = _scales_of_rows(parts["weight_scale"], len(codes))
        zeros = torch.full(scales.shape, half, dtype=torch.uint8)
        if self.codes.has_zeros or "weight_zero_point" in parts:
            zeros = _unpacked(parts["weight_zero_point"].T, self.codes.bits).T[: len(codes)]
        return self._in_groups(parts, codes, scales, zeros)

    def _fp8(self, parts: Parts) -> CodedWeight:
        blocks = parts.get("weight_scale_inv")
        if blocks is None:
            return _plain(parts, "weight_scale")
        rows, columns = parts["weight"].shape
        if blocks.ndim != 2 or columns % _FP8_BLOCK:
            return _plain(parts, "weight_scale_inv")
        scales = blocks.float().repeat_interleave(_FP8_BLOCK, dim=0)[:rows]
        return _checked(parts["weight"], scales, None, None)

    def _mxfp4(self, parts: Parts) -> CodedWeight:
        return _checked(mxfp4.codes_in_turn(parts["blocks"]), mxfp4.scales_of(parts["scales"]), None, None)


def is_ignored(name: str) -> bool:
    """Whether the tensor is a scale of pages, which choose their own here."""
    return name.endswith(_IGNORED)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes of int32 ``words`` [rows, n], uint8 [rows, n * 32 / bits], the lowest bits of a word first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (words.contiguous()[..., None] >> shifts) & ((1 << bits) - 1)
    return codes.to(torch.uint8).flatten(-2)


def _groups_of_columns(parts: Parts) -> torch.Tensor | None:
    return parts.get("g_idx", parts.get("weight_g_idx"))


def _order(groups: torch.Tensor, num_columns: int, num_groups: int) -> torch.Tensor | None:
    """The columns in an order in which those of a group, ``groups`` [columns], lie side by side; None if they do.

    Raises ValueError unless each of ``num_groups`` has as many columns as the others.
    """
    if groups.shape != (num_columns,) or groups.is_floating_point():
        raise ValueError("not a group for each column")
    order = torch.argsort(groups, stable=True)
    wanted = torch.arange(num_groups).repeat_interleave(num_columns // num_groups)
    if not torch.equal(groups[order].long(), wanted):
        raise ValueError("groups of different sizes")
    return None if torch.equal(groups.long(), wanted) else order


def _checked(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, order: torch.Tensor | None
) -> CodedWeight:
    rows, columns = codes.shape
    if order is not None and len(order) != columns:
        raise ValueError("an order of other columns")
    if scales.shape[0] != rows or columns % scales.shape[1] or (zeros is not None and zeros.shape != scales.shape):
        raise ValueError("scales that do not fit")
    zeros = None if zeros is None else zeros.contiguous()
    return CodedWeight(codes.contiguous(), scales.contiguous(), zeros, order)


def _signed(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, order: torch.Tensor | None) -> CodedWeight:
    """Codes of 8 bits around 128 as int8."""
    if zeros.shape != scales.shape or bool((zeros != 128).any()):
        raise ValueError("zeros that differ")
    return _checked((codes.int() - 128).to(torch.int8), scales, None, order)


def _plain(parts: Parts, scale: str) -> CodedWeight:
    weight = parts["weight"]
    if bool(parts.get("weight_zero_point", torch.zeros(1)).any()):
        raise ValueError("zeros that are not 0")
    return _checked(weight, _scales_of_rows(parts[scale], len(weight)), None, None)


def _scales_of_rows(scales: torch.Tensor, rows: int) -> torch.Tensor:
    """[rows, groups] of scales for each row and group, each row, or all of the matrix."""
    scales = scales.float()
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(rows, 1)
    if scales.shape[0] != rows:
        raise ValueError("scales of other rows")
    return scales.reshape(rows, -1)
