"""MatrixProduct: a weight that inputs are multiplied with, in whichever form is fastest where it is.

Forms: plain, multiplied by torch or by the backend's own product; packed by oneDNN (CPUs, floats); left to the native
library (CPUs, bfloat16); kept in quantised form. It changes form once, when the weight is filled, and lets go of the
memory of the form before.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.cpu.dense_product import DenseMatrix, NativeDense
from kernels.cpu.quantised_matrix import Prologue, QuantisedProduct
from kernels.products import DenseProduct, KeptMatrix, KeptProduct
from models.weight_place import WeightPlace

_PROLOGUES = {"silu": Prologue.SILU, "gelu_tanh": Prologue.GELU_TANH}


class MatrixProduct:
    """``x W^T + b`` with a weight [rows, in_features] of ``num_parts`` tensors, one after the other.

    A packed weight lies in the order in which the inner loop reads it. Measured on two cores of a Zen 4 against
    ``F.linear``: 1.4 to 4 times as fast at 1 to 32 rows of ``x``, in float32 and in bfloat16.
    """

    def __init__(
        self,
        place: WeightPlace,
        bias: torch.Tensor | None = None,
        num_parts: int = 1,
        *,
        dense_product: DenseProduct | None = None,
    ) -> None:
        """With a ``dense_product`` a weight of floats stays plain, and that product multiplies with it."""
        self._place: WeightPlace | None = place
        self.bias = bias
        self._dense_product = dense_product
        self._packed: torch.Tensor | None = None
        self._parts: list[KeptMatrix | None] = [None] * num_parts
        self._kept: KeptProduct | None = None
        self._order: torch.Tensor | None = None
        self._dense: DenseMatrix | None = None
        self._nbytes = place.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._kept is not None:
            ordered = x if self._order is None else x.index_select(-1, self._order)
            return self._finish(self._kept.multiply(ordered), x.dtype)
        if self._dense is not None:
            return self._dense.multiply(x)
        if self._packed is not None:
            return _packed_linear(x, self._packed, self.bias)
        assert self._place is not None
        if self._dense_product is not None:
            return self._dense_product(x, self._place.tensor, self.bias)
        return F.linear(x, self._place.tensor, self.bias)

    def of_normed(self, x: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The product of the RMSNorm of ``x``; only where it `takes_prologues`."""
        if self._dense is not None:
            return self._dense.multiply(x, Prologue.RMS_NORM, norm_weight, eps)
        assert isinstance(self._kept, QuantisedProduct)
        return self._finish(self._kept.multiply(x, Prologue.RMS_NORM, norm_weight, eps), x.dtype)

    def argmax_of_normed(self, x: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The place of the largest of each row of `of_normed`, int64; only where it `takes_prologues`."""
        if self._dense is not None:
            return self._dense.argmax(x, Prologue.RMS_NORM, norm_weight, eps)
        assert isinstance(self._kept, QuantisedProduct)
        if self.bias is None and x.dtype == torch.float32:
            return self._kept.argmax(x, Prologue.RMS_NORM, norm_weight, eps)
        return self.of_normed(x, norm_weight, eps).float().argmax(dim=-1)

    def of_gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """The product of ``activation(gate) * up``; only where it `takes_prologues`."""
        if self._dense is not None:
            return self._dense.multiply(gate_up, _PROLOGUES[activation])
        assert isinstance(self._kept, QuantisedProduct)
        return self._finish(self._kept.multiply(gate_up, _PROLOGUES[activation]), gate_up.dtype)

    def _finish(self, product: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.bias is not None:
            product += self.bias
        return product.to(dtype)

    @property
    def takes_prologues(self) -> bool:
        """Whether norms and gates are done on the way into the product: by the native library's."""
        return self._dense is not None or (isinstance(self._kept, QuantisedProduct) and self._order is None)

    def takes_gate(self, activation: str) -> bool:
        """Whether `of_gated` computes this activation."""
        return self.takes_prologues and activation in _PROLOGUES

    @property
    def place(self) -> WeightPlace | None:
        """Where the weight of floats goes, or is; None once the product has another form."""
        return self._place

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    @property
    def nbytes(self) -> int:
        """Memory of the weight."""
        if self._dense is not None:
            return self._dense.nbytes
        return self._nbytes if self._kept is None else self._kept.nbytes

    @property
    def copied_nbytes(self) -> int:
        """What of it is there beside the place that the weight came from."""
        if self._dense is not None:
            return self._dense.sieve_nbytes
        return 0 if self._packed is None else self._nbytes

    def keep(self, part: int, matrix: KeptMatrix, order: torch.Tensor | None = None) -> None:
        """Take a part in quantised form; with the last of them the product changes form.

        ``order`` int64 [in_features], the same for all parts, says which input each column belongs to.
        """
        self._parts[part] = matrix
        if order is not None:
            self._order = order.to(place.device) if (place := self._place) is not None else order
        parts = [one for one in self._parts if one is not None]
        if len(parts) == len(self._parts):
            self._kept = parts[0].joined(parts[1:])
            self._place = None

    def pack(self) -> None:
        """Leave the filled weight to the native library, or copy it into oneDNN's own layout and let go of it.

        Does nothing on other devices, beside a ``dense_product`` of theirs, and on CPUs where neither has a product for
        the weight's dtype (float16, mostly) or there is no memory for the copy: the weight then goes on as it is.
        """
        native = self._dense_product if isinstance(self._dense_product, NativeDense) else None
        if self._place is None or self._place.device.type != "cpu" or native is not self._dense_product:
            return
        if native is not None:
            self._dense = native.matrix(self._place.tensor, self.bias)
        if self._dense is None:
            self._packed = _packed_weight(self._place.tensor)
        if self._dense is not None or self._packed is not None:
            self._place = None


def _packed_weight(weight: torch.Tensor) -> torch.Tensor | None:
    """``weight`` as an opaque tensor that only `_packed_linear` reads, proved on a row of zeros, or None."""
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
        _packed_linear(weight.new_zeros(1, weight.shape[1]), packed, None)
    except (AttributeError, RuntimeError):  # no such operation; not for this dtype on this CPU
        return None
    return packed


def _packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
