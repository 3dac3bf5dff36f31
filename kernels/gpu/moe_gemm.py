"""Grouped matrix product of a mixture of experts: each row times the weight of the expert that owns it, in one launch.

Rows are sorted by expert, so that expert e owns rows ``offsets[e] : offsets[e + 1]``. A program takes one block of rows
of one expert and one block of its outputs. Blocks are numbered through without asking the device how many rows each
expert got: expert e starts at block ``offsets[e] // ROWS + e``, which leaves it enough numbers and at most one to
spare; a program finds its expert by binary search over the offsets, and one whose block is to spare ends at once.

Contract
    x           [num_tokens, in_features], dense last dimension
    weight      [num_experts, out_features, in_features], dense last dimension, x's dtype
    offsets     int32 [num_experts + 1], from 0 to num_rows, never falling; an expert may own nothing
    token_ids   int32 [num_rows], the row of x that sorted row i stands for; without it, row i itself
    output      [num_rows, out_features], dense, x's dtype, in sorted order

Numerics: operands as they are (float32 in full precision, never TF32), float32 sums over in_features in one fixed
order, no split of in_features, rounded once. With a fixed ``tile`` a row's bits do not depend on the rest of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.variant import Variant, pointer, warps_here


@dataclass(frozen=True, slots=True)
class GemmTile:
    """A program's part of a matrix product, ``depth`` of the inner dimension at a time, and how it is compiled."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


@triton.jit
def find_expert(offsets_ptr, num_experts, block, ROWS: tl.constexpr):
    """The last expert whose first block is ``block`` or before it."""
    low = 0
    high = num_experts - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(offsets_ptr + middle) // ROWS + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit(do_not_specialize=["num_experts"])
def grouped_gemm_kernel(
    output_ptr,
    x_ptr,
    weight_ptr,
    offsets_ptr,
    token_ids_ptr,
    num_experts,
    x_stride,
    weight_expert_stride,
    weight_row_stride,
    OUT_FEATURES: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GATHERS: tl.constexpr,
):
    """A block of one expert's rows times a block of its outputs. Grid: (output blocks, row blocks)."""
    block = tl.program_id(1)
    expert = find_expert(offsets_ptr, num_experts, block, ROWS)
    start = tl.load(offsets_ptr + expert)
    end = tl.load(offsets_ptr + expert + 1)
    first = start + (block - start // ROWS - expert) * ROWS
    if first >= end:
        return

    rows = first + tl.arange(0, ROWS)
    is_row = rows < end
    tokens = rows
    if GATHERS:
        tokens = tl.load(token_ids_ptr + rows, mask=is_row, other=0)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < OUT_FEATURES
    depth = tl.arange(0, DEPTH)
    x_rows = x_ptr + tokens.to(tl.int64) * x_stride
    weight_rows = weight_ptr + expert.to(tl.int64) * weight_expert_stride + columns.to(tl.int64) * weight_row_stride
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(0, IN_FEATURES, DEPTH):
        inner = step + depth
        in_bounds = inner < IN_FEATURES
        x = tl.load(x_rows[:, None] + inner[None, :], mask=is_row[:, None] & in_bounds[None, :], other=0.0)
        weight = tl.load(weight_rows[:, None] + inner[None, :], mask=is_column[:, None] & in_bounds[None, :], other=0.0)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    output_rows = output_ptr + rows.to(tl.int64) * OUT_FEATURES
    mask = is_row[:, None] & is_column[None, :]
    tl.store(output_rows[:, None] + columns[None, :], total.to(output_ptr.dtype.element_ty), mask=mask)


def grouped_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor,
    token_ids: torch.Tensor | None = None,
    *,
    tile: GemmTile | None = None,
) -> torch.Tensor:
    """Each sorted row times the transpose of its expert's weight. Shapes: see the module."""
    num_experts, out_features, in_features = weight.shape
    num_rows = x.shape[0] if token_ids is None else token_ids.shape[0]
    if x.shape[1] != in_features or x.dtype != weight.dtype:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype} does not fit weight {tuple(weight.shape)} {weight.dtype}")
    if x.stride(1) != 1 or weight.stride(2) != 1:
        raise ValueError("x and weight need a dense last dimension; call .contiguous() first")
    if offsets.shape != (num_experts + 1,) or offsets.dtype != torch.int32:
        raise ValueError(f"offsets {tuple(offsets.shape)} {offsets.dtype} must be int32 of {num_experts + 1}")
    output = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    if output.numel() == 0:
        return output
    shape = tile or grouped_gemm_tile(num_rows, num_experts, x.dtype)
    grid = (triton.cdiv(out_features, shape.columns), num_rows // shape.rows + num_experts)
    grouped_gemm_kernel[grid](
        output,
        x,
        weight,
        offsets,
        offsets if token_ids is None else token_ids,
        num_experts,
        x.stride(0),
        *weight.stride()[:2],
        OUT_FEATURES=out_features,
        IN_FEATURES=in_features,
        ROWS=shape.rows,
        COLUMNS=shape.columns,
        DEPTH=shape.depth,
        GATHERS=token_ids is not None,
        num_warps=warps_here(shape.num_warps),
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
    return output


def grouped_gemm_tile(num_rows: int, num_experts: int, dtype: torch.dtype) -> GemmTile:
    """Tall tiles where experts get many rows; where they get few, flat ones that stream the weight."""
    if dtype == torch.float32:  # no matrix unit multiplies in full precision: every product takes registers
        return GemmTile(rows=16, columns=32, depth=32, num_warps=4, num_stages=2)
    rows_each = num_rows / num_experts
    if rows_each > 64:
        return GemmTile(rows=128, columns=128, depth=32, num_warps=8, num_stages=3)
    if rows_each > 16:
        return GemmTile(rows=64, columns=128, depth=64, num_warps=4, num_stages=3)
    return GemmTile(rows=16, columns=64, depth=128, num_warps=4, num_stages=3)


def fixed_grouped_gemm(
    x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, token_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """`grouped_gemm` in which the bits of a row do not depend on the rest of the batch: one tile for any number."""
    return grouped_gemm(x, weight, offsets, token_ids, tile=grouped_gemm_tile(1, weight.shape[0], x.dtype))


def variants() -> list[Variant]:
    """All tiles, at the shapes of a mixture of 32 experts (2,880 wide) and of 8 experts (4,096 to 14,336)."""
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        types = {name: pointer(dtype) for name in ("output_ptr", "x_ptr", "weight_ptr")}
        types |= {name: pointer(torch.int32) for name in ("offsets_ptr", "token_ids_ptr")}
        for rows_each in (128, 32, 1):
            tile = grouped_gemm_tile(rows_each, 1, dtype)
            for out_features, in_features, gathers in ((5760, 2880, True), (4096, 14336, False)):
                kind = f"{tile.rows}x{tile.columns}x{tile.depth}"
                found.append(
                    Variant.of(
                        f"grouped_gemm {kind} {out_features}x{in_features} {str(dtype).removeprefix('torch.')}",
                        grouped_gemm_kernel,
                        types,
                        {
                            "OUT_FEATURES": out_features,
                            "IN_FEATURES": in_features,
                            "ROWS": tile.rows,
                            "COLUMNS": tile.columns,
                            "DEPTH": tile.depth,
                            "GATHERS": gathers,
                        },
                        num_warps=tile.num_warps,
                        num_stages=tile.num_stages,
                    )
                )
            if dtype == torch.float32:
                break
    return found
