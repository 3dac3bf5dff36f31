"""RMSNorm, alone or with the residual sum before or after it, in one pass over memory (Zhang and Sennrich, 2019).

Contract
    x           [..., size], dense last dimension; at most one stride in front of it besides that of tokens, so that the
                heads of a fused projection, a [num_tokens, num_heads, head_dim] view, are normed where they lie
    residual    like x
    weight      [size], any float dtype; a model whose weights are stored as 1 + w adds the 1 when it loads them
    output      dense, the shape and dtype of x

Numerics: float32 throughout, rounded once on the way out. ``add_rms_norm`` rounds the sum to x's dtype and norms the
rounded sum, which is what the next residual reads; ``rms_norm_add`` rounds the norm before it adds, and the sum again:
fused and separate give the same values. A row depends on itself only, and a program's tile on ``size`` only, so a row
has the same bits in every batch.
"""

from __future__ import annotations

from enum import Enum

import torch
import triton
import triton.language as tl

from kernels.gpu.variant import Variant, pointer, warps_here

TILE_ELEMENTS = 4096  # what one program holds, unless a single row is larger
LARGEST_SIZE = 65536


class Residual(Enum):
    """Where a residual is added."""

    NONE = "plain"
    BEFORE = "sum"
    AFTER = "then sum"


@triton.jit(do_not_specialize=["num_rows", "eps"])
def rms_norm_kernel(
    output_ptr,
    sum_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    num_rows,
    eps,
    x_token_stride,
    x_head_stride,
    residual_token_stride,
    residual_head_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS_BEFORE: tl.constexpr,
    ADDS_AFTER: tl.constexpr,
):
    """``ROWS`` rows, a row being one head of one token. Grid: (row blocks,)."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, SIZE_PADDED)
    in_row = dims < SIZE
    mask = (rows < num_rows)[:, None] & in_row[None, :]
    tokens = rows // HEADS
    heads = rows % HEADS

    x_rows = x_ptr + tokens * x_token_stride + heads * x_head_stride
    x = tl.load(x_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    if ADDS_BEFORE or ADDS_AFTER:
        residual_rows = residual_ptr + tokens * residual_token_stride + heads * residual_head_stride
        residual = tl.load(residual_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    if ADDS_BEFORE:
        x += residual
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + rows[:, None] * SIZE + dims[None, :], rounded, mask=mask)
        x = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(x * x, axis=1) / SIZE + eps)
    weight = tl.load(weight_ptr + dims, mask=in_row, other=0.0).to(tl.float32)
    normed = x * inverse[:, None] * weight[None, :]
    if ADDS_AFTER:
        normed = normed.to(output_ptr.dtype.element_ty).to(tl.float32) + residual
    tl.store(output_ptr + rows[:, None] * SIZE + dims[None, :], normed.to(output_ptr.dtype.element_ty), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension."""
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(output, output, x, x, weight, eps, Residual.NONE)
    return output


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The RMSNorm of ``x + residual``, and the sum itself, rounded to x's dtype."""
    _check_residual(x, residual)
    output, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch(output, total, x, residual, weight, eps, Residual.BEFORE)
    return output, total


def rms_norm_add(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``residual`` plus the RMSNorm of ``x``, which is rounded to x's dtype before."""
    _check_residual(x, residual)
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(output, output, x, residual, weight, eps, Residual.AFTER)
    return output


def _check_residual(x: torch.Tensor, residual: torch.Tensor) -> None:
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(f"residual {tuple(residual.shape)} {residual.dtype} is not like x {tuple(x.shape)} {x.dtype}")


def _launch(
    output: torch.Tensor,
    total: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual_is_added: Residual,
) -> None:
    size = x.shape[-1]
    if weight.shape != (size,):
        raise ValueError(f"weight {tuple(weight.shape)} does not fit x {tuple(x.shape)}")
    if size > LARGEST_SIZE:
        raise ValueError(f"rows of {size} elements are too long for one program: at most {LARGEST_SIZE}")
    x, residual = _by_head(x), _by_head(residual)
    num_rows = x.shape[0] * x.shape[1]
    if num_rows == 0 or size == 0:
        return
    rows, num_warps = tile(size)
    rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        output,
        total,
        x,
        residual,
        weight,
        num_rows,
        eps,
        *x.stride()[:2],
        *residual.stride()[:2],
        HEADS=x.shape[1],
        SIZE=size,
        SIZE_PADDED=triton.next_power_of_2(size),
        ROWS=rows,
        ADDS_BEFORE=residual_is_added is Residual.BEFORE,
        ADDS_AFTER=residual_is_added is Residual.AFTER,
        num_warps=warps_here(num_warps),
        enable_fp_fusion=True,
    )


def tile(size: int) -> tuple[int, int]:
    """Rows a program takes at once, and its warps: 8 to 32 elements a thread."""
    padded = triton.next_power_of_2(size)
    rows = 1 if padded > 512 else max(1, TILE_ELEMENTS // padded // 2)
    return rows, min(16, max(4, rows * padded // 512))


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """[num_tokens, num_heads, size], a view."""
    if x.dim() == 1 or x.stride(-1) != 1:
        raise ValueError(f"{tuple(x.shape)} with strides {x.stride()} needs [..., size] with a dense last dimension")
    return x[:, None] if x.dim() == 2 else x.flatten(0, -3) if x.dim() > 3 else x


def variants() -> list[Variant]:
    """Norms of hidden states, with and without the sum, and of the heads of queries and keys."""
    shapes = (
        (4096, 1, Residual.BEFORE),
        (128, 8, Residual.NONE),
        (4096, 1, Residual.NONE),
        (2560, 1, Residual.AFTER),
        (2880, 1, Residual.NONE),
        (16384, 1, Residual.BEFORE),
    )
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for size, heads, residual in shapes if dtype == torch.bfloat16 else shapes[:4]:
            rows, num_warps = tile(size)
            types = {name: pointer(dtype) for name in ("output_ptr", "sum_ptr", "x_ptr", "residual_ptr")}
            found.append(
                Variant.of(
                    f"rms_norm {residual.value} {size} {str(dtype).removeprefix('torch.')}",
                    rms_norm_kernel,
                    types | {"weight_ptr": pointer(torch.float32), "eps": "fp32"},
                    {
                        "HEADS": heads,
                        "SIZE": size,
                        "SIZE_PADDED": triton.next_power_of_2(size),
                        "ROWS": rows,
                        "ADDS_BEFORE": residual is Residual.BEFORE,
                        "ADDS_AFTER": residual is Residual.AFTER,
                    },
                    num_warps=num_warps,
                )
            )
    return found
