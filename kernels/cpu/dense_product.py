"""DenseMatrix: weights of bfloat16 where they lie, multiplied by the native library.

A decode step of few requests reads every weight once, so that memory decides; there the library's own threads and
kernels are nearer to it than torch's. On processors that multiply bfloat16 numbers many rows are prepared here and
multiplied by torch; on others, where torch's product is an order slower, all are multiplied here, as floats. What is
done on the way in, RMSNorm and gated activations, is computed in float32, and rounded once where bfloat16 numbers are
multiplied. A row has the same bits in any batch that is multiplied here.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F

from kernels.cpu.huge_pages import use_huge_pages
from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import TABLE_ROWS, Prologue

MOST_ROWS = 32  # that are multiplied here where torch's product is as good: more is a matter of arithmetic
MOST_SIEVED = 4  # input rows whose largest outputs are found faster one by one
MOST_SIEVED_AS_FLOATS = 2  # the same where all rows are multiplied as floats
GROUP = 32  # columns to a step of the kernel
_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}


class _DenseCall(ctypes.Structure):
    """Mirror of ``octavo::DenseCall`` in ``dense_product.h``."""

    _fields_ = [
        ("input", ctypes.c_void_p),
        ("input_stride", ctypes.c_int64),
        ("input_dtype", ctypes.c_int32),
        ("prologue", ctypes.c_int32),
        ("norm_weight", ctypes.c_void_p),
        ("norm_eps", ctypes.c_float),
        ("output_dtype", ctypes.c_int32),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("output", ctypes.c_void_p),
        ("sieve", ctypes.c_void_p),
    ]


class DenseMatrix:
    """The product with a bfloat16 weight [rows, columns] and a bias [rows], if there is one.

    A table of a vocabulary gives float32 outputs, from which tokens are chosen, and brings its weights once more in 4
    bits: by them `argmax` tells which are not worth reading. Other products are bfloat16.
    """

    def __init__(self, library: NativeLibrary, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._library, self._weight, self._bias = library, weight, bias
        self.rows, self.columns = weight.shape
        self._is_table = self.rows >= TABLE_ROWS
        self._sieve: torch.Tensor | None = None
        if self._is_table and bias is None:
            self._sieve = torch.empty(library.handle.octavo_sieve_bytes(self.rows, self.columns), dtype=torch.uint8)
            use_huge_pages(self._sieve)
            library.check(
                library.handle.octavo_pack_sieve(
                    library.variant,
                    torch.get_num_threads(),
                    ctypes.byref(_DenseCall(weight=weight.data_ptr(), rows=self.rows, columns=self.columns)),
                    self._sieve.data_ptr(),
                )
            )

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self.sieve_nbytes

    @property
    def sieve_nbytes(self) -> int:
        """What is there beside the weight itself."""
        return 0 if self._sieve is None else self._sieve.nbytes

    def multiply(
        self,
        x: torch.Tensor,
        prologue: Prologue = Prologue.NONE,
        norm_weight: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """[num_rows, rows] for ``x`` [num_rows, columns], float32 or bfloat16; prologues as `QuantisedProduct` has."""
        num_rows = x.shape[0]
        call = self._call(x, prologue, norm_weight, norm_eps)
        handle = self._library.handle
        if num_rows <= MOST_ROWS or self._is_table or not _leaves_many_rows(self._library):
            output = torch.empty(num_rows, self.rows, dtype=torch.float32 if self._is_table else torch.bfloat16)
            call.output, call.output_dtype = output.data_ptr(), _DTYPE_CODES[output.dtype]
            self._library.run(handle.octavo_dense_product, call, x, output)
            return output
        if prologue is not Prologue.NONE or x.dtype != torch.bfloat16:
            prepared = torch.empty(num_rows, self.columns, dtype=torch.bfloat16)
            call.output = prepared.data_ptr()
            self._library.run(handle.octavo_dense_prepare, call, x, prepared)
            x = prepared
        return F.linear(x, self._weight, self._bias)

    def argmax(
        self,
        x: torch.Tensor,
        prologue: Prologue = Prologue.NONE,
        norm_weight: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """The place of the largest of each row of `multiply`, int64 [num_rows], the first of equals; NaN is as -inf."""
        most_sieved = MOST_SIEVED if self._library.variant.has_bf16 else MOST_SIEVED_AS_FLOATS
        if self._sieve is None or x.shape[0] > most_sieved:
            outputs = self.multiply(x, prologue, norm_weight, norm_eps)
            places = outputs.argmax(dim=-1)
            if not outputs.gather(1, places[:, None]).isnan().any():
                return places
            return outputs.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(dim=-1)
        call = self._call(x, prologue, norm_weight, norm_eps)
        places = torch.empty(x.shape[0], dtype=torch.int64)
        library = self._library
        library.check(
            library.handle.octavo_dense_argmax(
                library.variant, torch.get_num_threads(), ctypes.byref(call), places.data_ptr()
            )
        )
        return places

    def _call(
        self, x: torch.Tensor, prologue: Prologue, norm_weight: torch.Tensor | None, norm_eps: float
    ) -> _DenseCall:
        """The call without its output."""
        gated = prologue in (Prologue.SILU, Prologue.GELU_TANH)
        num_rows, width = x.shape
        if width != self.columns * (2 if gated else 1) or x.stride(1) != 1 or x.dtype not in _DTYPE_CODES:
            raise ValueError(
                f"x {tuple(x.shape)} with strides {x.stride()} of {x.dtype} does not fit {self.columns} columns"
            )
        if (prologue is Prologue.RMS_NORM) != (norm_weight is not None):
            raise ValueError("a norm weight goes with the prologue RMS_NORM, and only with it")
        return _DenseCall(
            input=x.data_ptr(),
            input_stride=x.stride(0),
            input_dtype=_DTYPE_CODES[x.dtype],
            prologue=prologue,
            norm_weight=None if norm_weight is None else norm_weight.data_ptr(),
            norm_eps=norm_eps,
            weight=self._weight.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            num_rows=num_rows,
            rows=self.rows,
            columns=self.columns,
            sieve=None if self._sieve is None else self._sieve.data_ptr(),
        )


class NativeDense:
    """Implements ``kernels.products.DenseProduct``, by torch, and makes matrices of what the library is faster at."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    @property
    def takes_bfloat16(self) -> bool:
        """Whether weights of bfloat16 become matrices here, if their columns are right."""
        return self._library.variant.has_dense_product

    @property
    def keeps_bits(self) -> bool:
        """Whether a row has the same bits in any batch, wherever a matrix is made."""
        return not _leaves_many_rows(self._library)

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None) -> DenseMatrix | None:
        """Of a filled weight; None where its dtype, its columns or this machine are not for it."""
        fits = weight.dtype == torch.bfloat16 and weight.is_contiguous() and weight.shape[1] % GROUP == 0
        if not fits or not self.takes_bfloat16:
            return None
        return DenseMatrix(self._library, weight, bias)


def _leaves_many_rows(library: NativeLibrary) -> bool:
    """Whether torch multiplies more than `MOST_ROWS` rows: where it too multiplies bfloat16 numbers as they are."""
    return library.variant.has_bf16
