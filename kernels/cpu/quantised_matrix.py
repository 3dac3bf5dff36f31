"""QuantisedMatrix: weights in the bits they have in a GGUF file, multiplied where they lie.

Packed once into the order in which the native kernels read them (``quantised_matrix.h`` has the layout); there is no
copy in floats. A product quantises each input row to int8 by itself, 32 columns to a scale, and sums exactly, so that
the bits of a row do not depend on the batch, the threads or the chunking. Without the native library there is no
QuantisedMatrix: weights are then dequantised and multiplied by torch.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence

import torch

from kernels import mxfp4
from kernels.cpu.huge_pages import HugePageArena
from kernels.cpu.library import NativeLibrary
from kernels.products import WeightMemory

GROUP = 32  # columns that share a scale
WIDE_GROUP = 128  # likewise, of the wide kinds
PANEL_ROWS = 16
TABLE_ROWS = 1 << 15  # from so many rows on a matrix is a vocabulary's, and its largest output what is asked for most
_CODES = {  # of checkpoints: scales of few columns, and of many
    "codes4": ("CODES4", "CODES4_WIDE"),
    "codes8": ("CODES8", "CODES8_WIDE"),
    "fp8": ("FP8", "FP8_WIDE"),
}
_INPUT_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


class WeightKind(enum.IntEnum):
    """Formats of ggml that are kept as they are, and codes as other checkpoints publish them.

    Q8_PLANES is Q8_0 laid out for the largest output to be found fast. CODES4, CODES8 and FP8 have scales of 32
    columns, the wide ones of 128. ``weight_kind.h`` has the bits of each.
    """

    Q8_0 = 0
    Q5_0 = 1
    Q4_0 = 2
    Q4_K = 3
    Q6_K = 4
    Q8_PLANES = 5
    CODES4 = 6
    CODES4_WIDE = 7
    CODES8 = 8
    CODES8_WIDE = 9
    Q4_1 = 10
    Q5_1 = 11
    Q5_K = 12
    IQ4_NL = 13
    IQ4_XS = 14
    Q3_K = 15
    Q2_K = 16
    FP8 = 17
    FP8_WIDE = 18
    MXFP4 = 19


class Prologue(enum.IntEnum):
    """What is done to an input row in float32 before it is quantised: see `multiply`."""

    NONE = 0
    RMS_NORM = 1
    SILU = 2
    GELU_TANH = 3


class _Matrix(ctypes.Structure):
    """Mirror of ``octavo::QuantisedMatrix``."""

    _fields_ = [("panels", ctypes.c_void_p), ("rows", ctypes.c_int64), ("kind", ctypes.c_int32)]


class _ProductCall(ctypes.Structure):
    """Mirror of ``octavo::ProductCall``."""

    _fields_ = [
        ("input", ctypes.c_void_p),
        ("input_stride", ctypes.c_int64),
        ("input_dtype", ctypes.c_int32),
        ("prologue", ctypes.c_int32),
        ("norm_weight", ctypes.c_void_p),
        ("norm_eps", ctypes.c_float),
        ("num_matrices", ctypes.c_int32),
        ("matrices", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("output", ctypes.c_void_p),
        ("output_stride", ctypes.c_int64),
    ]


class QuantisedMatrix:
    """A matrix [rows, columns] of one kind, to be filled in runs of whole panels of 16 rows; nothing until then."""

    def __init__(
        self, library: NativeLibrary, kind: WeightKind, rows: int, columns: int, memory: WeightMemory | None = None
    ) -> None:
        size = library.handle.octavo_packed_bytes(kind, rows, columns)
        if size < 0:
            raise ValueError(f"{kind.name} weights cannot have {columns} columns")
        self.kind, self.rows, self.columns = kind, rows, columns
        self.library = library
        self._panels = (memory or HugePageArena()).take(size)
        self.description = _Matrix(self._panels.data_ptr(), rows, kind)

    @property
    def nbytes(self) -> int:
        return self._panels.numel()

    def pack_stored(self, first_row: int, rows: torch.Tensor, num_threads: int = 1) -> None:
        """Fill rows from ``first_row`` on, a multiple of 16, from uint8 ``rows`` [num_rows, stored bytes]."""
        num_rows = self._check_run(first_row, rows)
        self.library.check(
            self.library.handle.octavo_pack_stored_rows(
                ctypes.byref(self.description), rows.data_ptr(), first_row, num_rows, self.columns, num_threads
            )
        )

    def pack_floats(self, first_row: int, rows: torch.Tensor, num_threads: int = 1) -> None:
        """Quantise float32 ``rows`` [num_rows, columns] into place; of the kinds Q8_0, Q8_PLANES and Q4_1."""
        rows = rows.float().contiguous()
        num_rows = self._check_run(first_row, rows)
        self.library.check(
            self.library.handle.octavo_pack_float_rows(
                ctypes.byref(self.description), rows.data_ptr(), first_row, num_rows, self.columns, num_threads
            )
        )

    def pack_codes(
        self,
        first_row: int,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        num_threads: int = 1,
    ) -> None:
        """Fill rows from ``first_row`` on from codes: see ``kernels.products.KeptMatrix``. Exact for any scales."""
        num_rows, groups = self._check_run(first_row, codes), scales.shape[1]
        if codes.shape[1] != self.columns or codes.dtype not in (torch.uint8, torch.int8):
            raise ValueError(f"codes {codes.dtype} {tuple(codes.shape)} are not those of {self.columns} columns")
        if self.kind in (WeightKind.CODES4, WeightKind.CODES4_WIDE) and codes.view(torch.uint8).max() > 15:
            raise ValueError(f"{self.kind.name} weights have codes of 0 .. 15")
        if self.kind in (WeightKind.FP8, WeightKind.FP8_WIDE) and (codes.view(torch.uint8) & 0x7F).max() > 0x7E:
            raise ValueError(f"{self.kind.name} weights have no NaN")
        if scales.dtype is not torch.float32 or (zeros is not None and zeros.dtype is not torch.uint8):
            raise ValueError("scales must be float32 and zeros uint8")
        if self.kind is WeightKind.MXFP4 and not mxfp4.are_exact(codes, scales):
            raise ValueError("MXFP4 weights are twice a 4-bit float each, and their scales powers of two")
        if any(one is not None and one.shape != (num_rows, groups) for one in (scales, zeros)):
            raise ValueError(f"scales and zeros must be [{num_rows}, groups], one for each")
        scales, zeros = scales.contiguous(), None if zeros is None else zeros.contiguous()
        self.library.check(
            self.library.handle.octavo_pack_codes(
                ctypes.byref(self.description),
                codes.data_ptr(),
                scales.data_ptr(),
                None if zeros is None else zeros.data_ptr(),
                groups,
                first_row,
                num_rows,
                self.columns,
                num_threads,
            )
        )

    def unpack(self, row_ids: torch.Tensor) -> torch.Tensor:
        """The weights of int64 ``row_ids`` [n], float32 [n, columns]."""
        output = torch.empty(len(row_ids), self.columns, dtype=torch.float32)
        self.library.check(
            self.library.handle.octavo_unpack_rows(
                self.library.variant,
                ctypes.byref(self.description),
                self.columns,
                row_ids.contiguous().data_ptr(),
                len(row_ids),
                output.data_ptr(),
            )
        )
        return output

    def joined(self, others: Sequence[QuantisedMatrix]) -> QuantisedProduct:
        """The product with this matrix and ``others``."""
        return QuantisedProduct([self, *others])

    def _check_run(self, first_row: int, rows: torch.Tensor) -> int:
        num_rows = rows.shape[0]
        last = first_row + num_rows
        if first_row % PANEL_ROWS or last > self.rows or (num_rows % PANEL_ROWS and last != self.rows):
            raise ValueError(f"rows {first_row} .. {last} of {self.rows} are no run of whole panels")
        if not rows.is_contiguous():
            raise ValueError("rows to pack must be contiguous")
        return num_rows


class QuantisedProduct:
    """Matrices with the same input, multiplied in one call; the outputs of a row lie one after the other."""

    def __init__(self, matrices: Sequence[QuantisedMatrix]) -> None:
        columns = {matrix.columns for matrix in matrices}
        if len(columns) != 1:
            raise ValueError(f"matrices of one product have one number of columns, not {sorted(columns)}")
        (self.columns,) = columns
        self.rows = sum(matrix.rows for matrix in matrices)
        self.matrices = tuple(matrices)
        self._library = matrices[0].library
        self._descriptions = (_Matrix * len(matrices))(*(matrix.description for matrix in matrices))

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices)

    def multiply(
        self,
        x: torch.Tensor,
        prologue: Prologue = Prologue.NONE,
        norm_weight: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """Float32 [num_rows, rows] for ``x`` [num_rows, columns] in float32 or bfloat16, rows contiguous.

        `Prologue.RMS_NORM` first norms each row, by float32 ``norm_weight`` [columns]; for the gated ones ``x`` is
        [num_rows, 2 * columns], and the input is activation(first half) * second half.
        """
        call, x = self._call(x, prologue, norm_weight, norm_eps)
        output = torch.empty(x.shape[0], self.rows, dtype=torch.float32)
        if not len(output):
            return output
        call.output, call.output_stride = output.data_ptr(), self.rows
        self._library.run(self._library.handle.octavo_product, call, x, output)
        return output

    def argmax(
        self,
        x: torch.Tensor,
        prologue: Prologue = Prologue.NONE,
        norm_weight: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """The place of the largest output of each row, the first of equal ones, int64 [num_rows].

        The same as of `multiply`'s outputs, which are never stored here.
        """
        call, _held = self._call(x, prologue, norm_weight, norm_eps)
        places = torch.empty(x.shape[0], dtype=torch.int64)
        if not len(places):
            return places
        self._library.check(
            self._library.handle.octavo_product_argmax(
                self._library.variant, torch.get_num_threads(), ctypes.byref(call), places.data_ptr()
            )
        )
        return places

    def _call(
        self, x: torch.Tensor, prologue: Prologue, norm_weight: torch.Tensor | None, norm_eps: float
    ) -> tuple[_ProductCall, torch.Tensor]:
        """The call without its output, and the input that it points to."""
        if x.dtype not in _INPUT_DTYPES:
            x = x.float()
        gated = prologue in (Prologue.SILU, Prologue.GELU_TANH)
        num_rows, width = x.shape
        if width != self.columns * (2 if gated else 1) or (width > 1 and x.stride(1) != 1):
            raise ValueError(f"x {tuple(x.shape)} with strides {x.stride()} does not fit {self.columns} columns")
        if (prologue is Prologue.RMS_NORM) != (norm_weight is not None):
            raise ValueError("a norm weight goes with the prologue RMS_NORM, and only with it")
        call = _ProductCall(
            x.data_ptr(),
            x.stride(0),
            _INPUT_DTYPES[x.dtype],
            prologue,
            None if norm_weight is None else norm_weight.data_ptr(),
            norm_eps,
            len(self.matrices),
            ctypes.addressof(self._descriptions),
            num_rows,
            self.columns,
        )
        return call, x


class NativeKernels:
    """What the native library multiplies: implements ``kernels.products.WeightKernels``."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._memory: WeightMemory = HugePageArena()  # of a model's weights

    def lay_into(self, memory: WeightMemory) -> bool:
        self._memory = memory
        return True

    def kind(self, form: str, columns: int, group: int = GROUP) -> WeightKind | None:
        """Floats become ggml's own forms of 8 and 4 bits."""
        if form in _CODES:
            form = _CODES[form][group % WIDE_GROUP == 0]
        kind = WeightKind.__members__.get({"int8": "Q8_0", "int4": "Q4_1"}.get(form, form))
        if kind is None or self._library.handle.octavo_packed_bytes(kind, 1, columns) < 0:
            return None
        return None if group % GROUP or columns % group else kind

    def matrices(
        self, kinds: Sequence[WeightKind], rows: Sequence[int], columns: int, device: torch.device
    ) -> list[QuantisedMatrix]:
        """Of any kinds; ``device`` is the host. Tables of a vocabulary are laid out for `QuantisedProduct.argmax`."""
        planes = {WeightKind.Q8_0: WeightKind.Q8_PLANES}
        return [
            QuantisedMatrix(
                self._library,
                planes.get(kind, kind) if num_rows >= TABLE_ROWS else kind,
                num_rows,
                columns,
                self._memory,
            )
            for kind, num_rows in zip(kinds, rows, strict=True)
        ]
