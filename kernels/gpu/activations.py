"""Gated activations: ``activation(gate) * up``, the middle of a gated MLP (Shazeer, 2020), in one pass over memory.

    SwiGLU           activation(x) = x * sigmoid(x)
    GeGLU            activation(x) = x / 2 * (1 + erf(x / sqrt(2)))
    GeGLU (tanh)     activation(x) = x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 x ** 3)
                                   = x * sigmoid(2 u)
    SwiGLU (gpt-oss) activation(x) = x * sigmoid(1.702 x), x = min(gate, 7), times max(-7, min(up, 7)) + 1

Contract
    gate_up     [num_tokens, 2 * size], the gate in the first half of a row and up in the second, as one matrix product
                leaves them; any token stride with a dense last dimension
    output      [num_tokens, size], dense, same dtype

Numerics: float32, rounded once. In the second form of GeGLU tanh loses nothing to cancellation where it is near -1.
"""

from __future__ import annotations

from enum import Enum

import torch
import triton
import triton.language as tl

from kernels.gpu.variant import Variant, pointer

BLOCK = 2048
NUM_WARPS = 4


class Activation(Enum):
    """Which function gates."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SWIGLU_OAI = "swiglu_oai"


@triton.jit
def gate_kernel(
    output_ptr,
    gate_up_ptr,
    token_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """``BLOCK`` elements of one token. ``ACTIVATION`` is the value of one. Grid: (num_tokens, blocks)."""
    token = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = dims < SIZE
    row = gate_up_ptr + token * token_stride
    gate = tl.load(row + dims, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row + SIZE + dims, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "swiglu_oai":
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0
    if ACTIVATION == "gelu":
        gated = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476)) * up
    else:
        exponent = gate
        if ACTIVATION == "gelu_tanh":
            exponent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        elif ACTIVATION == "swiglu_oai":
            exponent = 1.702 * gate
        gated = gate / (1.0 + tl.exp(-exponent)) * up
    tl.store(output_ptr + token * SIZE + dims, gated.to(output_ptr.dtype.element_ty), mask=mask)


def gate(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The gated rows. Shapes: see the module."""
    num_tokens, doubled = gate_up.shape
    if doubled % 2 or (gate_up.stride(1) != 1 and gate_up.numel() > 0):
        raise ValueError(f"{tuple(gate_up.shape)} needs rows of a gate and as many ups, densely")
    size = doubled // 2
    output = torch.empty((num_tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if output.numel() > 0:
        gate_kernel[(num_tokens, triton.cdiv(size, BLOCK))](
            output,
            gate_up,
            gate_up.stride(0),
            SIZE=size,
            BLOCK=BLOCK,
            ACTIVATION=activation.value,
            num_warps=NUM_WARPS,
            enable_fp_fusion=True,
        )
    return output


def variants() -> list[Variant]:
    """All functions in all dtypes, at the width of an 8B model's MLP."""
    return [
        Variant.of(
            f"gate {activation.value} {str(dtype).removeprefix('torch.')}",
            gate_kernel,
            {"output_ptr": pointer(dtype), "gate_up_ptr": pointer(dtype)},
            {"SIZE": 14336, "BLOCK": BLOCK, "ACTIVATION": activation.value},
            num_warps=NUM_WARPS,
        )
        for activation in Activation
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ]
