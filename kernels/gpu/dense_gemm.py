"""Matrix product of float weights in which a row has the same bits in any batch, for ``--deterministic``.

A library chooses tiles, and splits the inner dimension, by the number of rows, and with them the order in which a row's
products are added. Here the tile follows from dtype and weight alone: one program makes a block of rows by a block of
outputs, going through the inner dimension from beginning to end, ``depth`` at a time. The same idea as in "Defeating
Nondeterminism in LLM Inference" (He et al., 2025).

Contract
    x           [num_rows, in_features], float32, bfloat16 or float16; copied where rows are not dense
    weight      [out_features, in_features], dense, x's dtype
    bias        [out_features], x's dtype, or None
    output      [num_rows, out_features], dense, x's dtype

Numerics: operands as they are (float32 in full precision, never TF32), float32 sums in one fixed order, no split of
in_features; bias added to the sum, rounded once. Neither code nor order depends on num_rows or on a row's place, and no
row is read for another, so that NaN in one stays there. Proven in Triton's interpreter; not yet run on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.moe_gemm import GemmTile
from kernels.gpu.variant import Variant, pointer, warps_here

WIDE_OUTPUT = 16_384  # from here on, blocks of 128 outputs are programs enough for a GPU's multiprocessors
GROUP_ROWS = 8  # row blocks whose programs run next to each other, for what they share in the second-level cache


@triton.jit(do_not_specialize=["num_rows"])
def dense_gemm_kernel(
    output_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    OUT_FEATURES: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
):
    """A block of rows times a block of outputs. Grid: (blocks,), ``GROUP_ROWS`` blocks of rows at a time."""
    COLUMN_BLOCKS: tl.constexpr = (OUT_FEATURES + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    first = program // (GROUP_ROWS * COLUMN_BLOCKS) * GROUP_ROWS
    in_group = program % (GROUP_ROWS * COLUMN_BLOCKS)
    group_size = tl.minimum(tl.cdiv(num_rows, ROWS) - first, GROUP_ROWS)
    rows = (first + in_group % group_size) * ROWS + tl.arange(0, ROWS)
    columns = in_group // group_size * COLUMNS + tl.arange(0, COLUMNS)

    is_row = rows < num_rows
    is_column = columns < OUT_FEATURES
    depth = tl.arange(0, DEPTH)
    x_rows = x_ptr + rows.to(tl.int64) * IN_FEATURES
    weight_rows = weight_ptr + columns.to(tl.int64) * IN_FEATURES
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(0, IN_FEATURES, DEPTH):
        inner = step + depth
        in_bounds = inner < IN_FEATURES
        x = tl.load(x_rows[:, None] + inner[None, :], mask=is_row[:, None] & in_bounds[None, :], other=0.0)
        weight = tl.load(weight_rows[:, None] + inner[None, :], mask=is_column[:, None] & in_bounds[None, :], other=0.0)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    if bias_ptr is not None:
        total += tl.load(bias_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    output_rows = output_ptr + rows.to(tl.int64) * OUT_FEATURES
    mask = is_row[:, None] & is_column[None, :]
    tl.store(output_rows[:, None] + columns[None, :], total.to(output_ptr.dtype.element_ty), mask=mask)


def dense_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, tile: GemmTile | None = None
) -> torch.Tensor:
    """``x`` times the transpose of ``weight``, plus ``bias``. Shapes: see the module. ``tile`` is for tests."""
    out_features, in_features = weight.shape
    if x.dim() != 2 or x.shape[1] != in_features or x.dtype != weight.dtype:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype} does not fit weight {tuple(weight.shape)} {weight.dtype}")
    if not weight.is_contiguous():
        raise ValueError("weight needs dense rows, one after the other; call .contiguous() first")
    if bias is not None and (bias.shape != (out_features,) or bias.dtype != x.dtype or not bias.is_contiguous()):
        raise ValueError(f"bias {tuple(bias.shape)} {bias.dtype} must be dense {x.dtype} of {out_features}")
    x = x.contiguous()
    num_rows = x.shape[0]
    output = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    if output.numel() == 0:
        return output
    shape = tile or dense_gemm_tile(out_features, x.dtype)
    dense_gemm_kernel[(triton.cdiv(num_rows, shape.rows) * triton.cdiv(out_features, shape.columns),)](
        output,
        x,
        weight,
        bias,
        num_rows,
        OUT_FEATURES=out_features,
        IN_FEATURES=in_features,
        ROWS=shape.rows,
        COLUMNS=shape.columns,
        DEPTH=shape.depth,
        GROUP_ROWS=GROUP_ROWS,
        num_warps=warps_here(shape.num_warps),
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
    return output


def dense_gemm_tile(out_features: int, dtype: torch.dtype) -> GemmTile:
    """One tile for one row and for thousands, by the weight alone.

    As many rows as matrix units want: with few of them a product waits for its weight, whatever is multiplied beside
    it. Narrow weights get narrow blocks, so that there are as many programs as multiprocessors or nearly so.
    """
    if dtype == torch.float32:  # no matrix unit multiplies in full precision: every product takes registers
        return GemmTile(rows=16, columns=32, depth=32, num_warps=4, num_stages=2)
    if out_features < WIDE_OUTPUT:
        return GemmTile(rows=64, columns=64, depth=128, num_warps=4, num_stages=3)
    return GemmTile(rows=128, columns=128, depth=64, num_warps=8, num_stages=3)


def variants() -> list[Variant]:
    """Products of an 8B model, narrow (its MLP's second) and wide (its first), and one with a bias."""
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for out_features, in_features, has_bias in ((4096, 14336, False), (28672, 4096, False), (4608, 3584, True)):
            tile = dense_gemm_tile(out_features, dtype)
            types: dict[str, str | None] = {name: pointer(dtype) for name in ("output_ptr", "x_ptr", "weight_ptr")}
            kind = f"{tile.rows}x{tile.columns}x{tile.depth} {out_features}x{in_features}{' bias' * has_bias}"
            found.append(
                Variant.of(
                    f"dense_gemm {kind} {str(dtype).removeprefix('torch.')}",
                    dense_gemm_kernel,
                    types | {"bias_ptr": pointer(dtype) if has_bias else None},
                    {
                        "OUT_FEATURES": out_features,
                        "IN_FEATURES": in_features,
                        "ROWS": tile.rows,
                        "COLUMNS": tile.columns,
                        "DEPTH": tile.depth,
                        "GROUP_ROWS": GROUP_ROWS,
                    },
                    num_warps=tile.num_warps,
                    num_stages=tile.num_stages,
                )
            )
    return found
