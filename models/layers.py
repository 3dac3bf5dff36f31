"""The parts decoders are made of: Linear, RMSNorm, Embedding, GatedMLP, Rotary.

Plain callables over tensors allocated empty and filled by ``models.loader`` through ``parameters(prefix)``. They know
no pages, no other tokens and no architectures. Weights have the model's dtype; RMSNorm and rotary compute in float32
and round once. Invariant: on CPUs the weight of a matrix product is packed once it is filled, and plain no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from models.model import Parameter
from models.spec import RopeSpec

NamedParameters = Iterator[tuple[str, Parameter]]

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class MatrixProduct:
    """``x W^T + b`` with a plain weight [rows, in_features], until `pack` makes it faster.

    A packed weight lies in the order in which the inner loop reads it. Measured on two cores of a Zen 4 against
    ``F.linear``: 1.4 to 4 times as fast at 1 to 32 rows of ``x``, in float32 and in bfloat16.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight: torch.Tensor | None = weight
        self.bias = bias
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            return _packed_linear(x, self._packed, self.bias)
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    def pack(self) -> None:
        """Copy the filled weight into oneDNN's own layout and let go of the plain one.

        Does nothing on other devices, and on CPUs where this build of torch has no packed product for the weight's
        dtype (float16, mostly) or no memory for the copy: ``F.linear`` then goes on serving the plain weight.
        """
        if self.weight is not None and self.weight.device.type == "cpu":
            self._packed = _packed_weight(self.weight)
            if self._packed is not None:
                self.weight = None


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


class Linear:
    """``x W^T + b`` for one or more projections of the same input, computed as one matrix product.

    ``outputs`` maps the name of each projection to its number of rows; the result is [..., sum of rows], in order.
    """

    def __init__(
        self, in_features: int, outputs: dict[str, int], *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        rows = sum(outputs.values())
        self._outputs = outputs
        self._product = MatrixProduct(
            torch.empty(rows, in_features, dtype=dtype, device=device),
            torch.empty(rows, dtype=dtype, device=device) if bias else None,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x)

    def parameters(self, prefix: str) -> NamedParameters:
        """The places of each projection; none once they are packed."""
        weight, bias, pack = self._product.weight, self._product.bias, self._product.pack
        if weight is None:
            return
        start = 0
        for name, rows in self._outputs.items():
            view = weight[start : start + rows]
            yield f"{prefix}{name}.weight", Parameter(view, tuple(view.shape), when_filled=pack)
            if bias is not None:
                yield f"{prefix}{name}.bias", Parameter(bias[start : start + rows], (rows,), when_filled=pack)
            start += rows


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang and Sennrich, 2019), weight in float32."""

    def __init__(self, size: int, eps: float, *, plus_one: bool, device: torch.device) -> None:
        self._eps = eps
        self._plus_one = plus_one
        self.weight = torch.empty(size, dtype=torch.float32, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self._eps)

    def parameters(self, name: str) -> NamedParameters:
        yield f"{name}.weight", Parameter(self.weight, tuple(self.weight.shape), self._plus_one)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of the last dimension of ``x`` in float32, by a float32 ``weight`` that broadcasts to it."""
    normed = F.rms_norm(x.float(), x.shape[-1:], eps=eps)
    return (normed * weight).to(x.dtype)


class Embedding:
    """Rows of a table, times a scale that is rounded to the table's dtype as Gemma's was in training."""

    def __init__(self, rows: int, size: int, scale: float, *, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(rows, size, dtype=dtype, device=device)
        self._scale = torch.tensor(scale, dtype=dtype).item()

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(token_ids, self.weight)
        return rows if self._scale == 1.0 else rows * self._scale

    def parameters(self, name: str, when_filled: Callable[[], None] | None = None) -> NamedParameters:
        yield f"{name}.weight", Parameter(self.weight, tuple(self.weight.shape), when_filled=when_filled)


class GatedMLP:
    """``down(activation(gate(x)) * up(x))`` (Shazeer, 2020), gate and up in one matrix product."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: str, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        outputs = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self._gate_up = Linear(hidden_size, outputs, bias=False, dtype=dtype, device=device)
        self._down = Linear(intermediate_size, {"down_proj": hidden_size}, bias=False, dtype=dtype, device=device)
        self._activation = _ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(self._activation(gate) * up)

    def parameters(self, prefix: str) -> NamedParameters:
        yield from self._gate_up.parameters(prefix)
        yield from self._down.parameters(prefix)


Rotation = tuple[torch.Tensor, torch.Tensor]


class Rotary:
    """Rotary position embedding (Su et al., 2021) that rotates element ``i`` with element ``i + head_dim / 2``.

    ``Rotary(positions)`` gives the cosines and sines of a step, float32 [num_tokens, 1, head_dim / 2], which all layers
    of one kind share: there is no table, so no largest position and nothing to grow.
    """

    def __init__(self, rope: RopeSpec, head_dim: int, *, device: torch.device) -> None:
        self._frequencies = rotary_frequencies(rope, head_dim).to(device)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        angles = positions[:, None, None].float() * self._frequencies
        return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate every head of ``x`` [num_tokens, num_heads, head_dim] by its token's angles."""
    cos, sin = rotation
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.empty_like(x)
    rotated_first, rotated_second = rotated.chunk(2, dim=-1)
    torch.addcmul(first * cos, second, sin, value=-1.0, out=rotated_first)
    torch.addcmul(second * cos, first, sin, out=rotated_second)
    return rotated


def rotary_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Angle per position of each of the head_dim / 2 pairs, float32."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.scaling == "default":
        return frequencies
    if rope.scaling == "linear":
        return frequencies / rope.parameters["factor"]
    if rope.scaling == "factors":
        return frequencies / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    if rope.scaling == "llama3":
        return _llama3_frequencies(frequencies, rope)
    raise ValueError(f"unknown rotary scaling {rope.scaling!r}")


def _llama3_frequencies(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long waves slowed by ``factor``, short ones kept, a linear blend between (the rule of Llama 3.1)."""
    factor, low, high, context = (
        rope.parameters[name]
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = context * frequencies / (2 * math.pi)  # over the context the model was first trained on
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / factor + kept * frequencies
