"""Matrix product with a weight of int8 or int4 codes, which are widened on their way to the matrix units.

For the shapes that torch does not serve: its own int4 product wants bfloat16 and one vendor's layout, its int8 product
no groups. Few rows make it a matrix-vector product at the speed at which codes are read; many rows, an ordinary one.

    int8    codes int8 [out_features, in_features], weight = code * scale; one scale per output, or one per output and
            group of 32 inputs, which is what Q8_0 of a GGUF file is
    int4    two codes of -8 .. 7, stored plus 8, to a byte; a scale per output and group of ``group`` inputs
            byte j of a group holds input j in its low and input j + group / 2 in its high half, so that both halves of
            a group are runs of bytes, and no code has to move beside another; in groups of 32 it is Q4_0 of a file
            with zeros, what is taken from a stored code is one of the output and group, in place of 8

Contract
    x           [num_rows, in_features], dense last dimension; float32, bfloat16 or float16
    weight      see ``QuantisedWeight``
    output      [num_rows, out_features], dense, x's dtype

Numerics: codes are exact in every float dtype, so products are those of x and integers; they are added in float32 in
one fixed order, a group at a time, and scales multiply the sums, in float32. Rounded once. No split of in_features, and
the order does not depend on num_rows as long as the tile does not (``is_deterministic``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.moe_gemm import GemmTile
from kernels.gpu.variant import Variant, pointer, warps_here

INT4_GROUPS = (32, 64, 128)
INT8_GROUP = 32
DETERMINISTIC_ROWS = 64  # whose tile all batches take in deterministic mode


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """Codes and scales of a weight [out_features, in_features].

    ``codes`` int8 [out_features, in_features] with ``group`` 0 or INT8_GROUP, or uint8 [out_features, in_features / 2]
    with one of INT4_GROUPS; ``scales`` float32 or float16 [out_features, groups], dense, of one group where ``group``
    is 0. ``zeros`` uint8 [out_features, groups], dense, of codes of 4 bits, or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int
    zeros: torch.Tensor | None = None

    @classmethod
    def int8(cls, weight: torch.Tensor) -> QuantisedWeight:
        """Symmetric: scale = largest magnitude / 127, codes rounded to nearest even."""
        codes, scales = _round(weight.float()[:, None], 127.0)
        return cls(codes[:, 0].to(torch.int8), scales, 0)

    @classmethod
    def int4(cls, weight: torch.Tensor, group: int = 128) -> QuantisedWeight:
        """Symmetric: scale = largest magnitude of a group / 7. ValueError unless ``group`` is served and divides."""
        out_features, in_features = weight.shape
        if group not in INT4_GROUPS or in_features % group:
            raise ValueError(f"groups of {group} do not divide {in_features} inputs, or are none of {INT4_GROUPS}")
        codes, scales = _round(weight.float().view(out_features, -1, group), 7.0)
        low, high = (codes + 8).to(torch.uint8).chunk(2, dim=2)
        return cls((low | high << 4).reshape(out_features, -1), scales, group)

    @property
    def bits(self) -> int:
        return 4 if self.codes.dtype == torch.uint8 else 8

    @property
    def in_features(self) -> int:
        return self.codes.shape[1] * 8 // self.bits

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    def rows(self, selection: slice | torch.Tensor) -> QuantisedWeight:
        """Some outputs; a view where ``selection`` is a slice."""
        zeros = None if self.zeros is None else self.zeros[selection]
        return QuantisedWeight(self.codes[selection], self.scales[selection], self.group, zeros)

    def values(self) -> torch.Tensor:
        """The weights, float32 [out_features, in_features], each rounded once."""
        integers = self.integers().float()
        return (integers.view(*self.scales.shape, -1) * self.scales.float()[..., None]).view_as(integers)

    def integers(self) -> torch.Tensor:
        """The codes as int8 [out_features, in_features], less what stands for zero."""
        if self.bits == 8:
            return self.codes
        packed = self.codes.view(self.codes.shape[0], -1, self.group // 2)
        zeros = 8 if self.zeros is None else self.zeros.to(torch.int8)[..., None]
        return (torch.cat([packed & 0xF, packed >> 4], dim=2).to(torch.int8) - zeros).flatten(1)


def _round(groups: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    scales = groups.abs().amax(dim=2) / largest
    return (groups / torch.where(scales > 0, scales, 1.0)[..., None]).round(), scales


@triton.jit(do_not_specialize=["num_rows"])
def int8_gemm_kernel(
    output_ptr,
    x_ptr,
    codes_ptr,
    scales_ptr,
    num_rows,
    x_stride,
    codes_stride,
    OUT_FEATURES: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
):
    """A block of rows times a block of outputs, ``DEPTH`` inputs a group if any. Grid: (output blocks, row blocks)."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row = rows < num_rows
    is_column = columns < OUT_FEATURES
    depth = tl.arange(0, DEPTH)
    x_rows = x_ptr + rows.to(tl.int64) * x_stride
    code_rows = codes_ptr + columns.to(tl.int64) * codes_stride
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(0, IN_FEATURES, DEPTH):
        inner = step + depth
        in_bounds = inner < IN_FEATURES
        x = tl.load(x_rows[:, None] + inner[None, :], mask=is_row[:, None] & in_bounds[None, :], other=0.0)
        codes = tl.load(code_rows[:, None] + inner[None, :], mask=is_column[:, None] & in_bounds[None, :], other=0)
        weight = tl.trans(codes.to(tl.float32).to(x.dtype))
        if HAS_GROUPS:
            scale = tl.load(scales_ptr + columns * (IN_FEATURES // DEPTH) + step // DEPTH, mask=is_column, other=0.0)
            total += tl.dot(x, weight, input_precision="ieee") * scale.to(tl.float32)[None, :]
        else:
            total = tl.dot(x, weight, total, input_precision="ieee")
    if not HAS_GROUPS:
        total = total * tl.load(scales_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    output_rows = output_ptr + rows.to(tl.int64) * OUT_FEATURES
    mask = is_row[:, None] & is_column[None, :]
    tl.store(output_rows[:, None] + columns[None, :], total.to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def int4_gemm_kernel(
    output_ptr,
    x_ptr,
    codes_ptr,
    scales_ptr,
    zeros_ptr,
    num_rows,
    x_stride,
    codes_stride,
    OUT_FEATURES: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A block of rows times a block of outputs, one group of inputs at a time. Grid: (output blocks, row blocks)."""
    HALF: tl.constexpr = GROUP // 2
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row = rows < num_rows
    is_column = columns < OUT_FEATURES
    half = tl.arange(0, HALF)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * x_stride + half[None, :]
    code_rows = codes_ptr + columns.to(tl.int64)[:, None] * codes_stride + half[None, :]
    scale_rows = scales_ptr + columns * (IN_FEATURES // GROUP)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for group in range(0, IN_FEATURES // GROUP):
        low_x = tl.load(x_rows + group * GROUP, mask=is_row[:, None], other=0.0)
        high_x = tl.load(x_rows + group * GROUP + HALF, mask=is_row[:, None], other=0.0)
        packed = tl.load(code_rows + group * HALF, mask=is_column[:, None], other=0)
        scale = tl.load(scale_rows + group, mask=is_column, other=0.0).to(tl.float32)
        if HAS_ZEROS:
            zeros = tl.load(zeros_ptr + columns * (IN_FEATURES // GROUP) + group, mask=is_column, other=0)
            zero = zeros.to(tl.float32)[:, None]
        else:
            zero = 8.0
        low = ((packed & 0xF).to(tl.float32) - zero).to(low_x.dtype)
        high = ((packed >> 4).to(tl.float32) - zero).to(low_x.dtype)
        part = tl.dot(low_x, tl.trans(low), input_precision="ieee")
        part = tl.dot(high_x, tl.trans(high), part, input_precision="ieee")
        total += part * scale[None, :]
    output_rows = output_ptr + rows.to(tl.int64) * OUT_FEATURES
    mask = is_row[:, None] & is_column[None, :]
    tl.store(output_rows[:, None] + columns[None, :], total.to(output_ptr.dtype.element_ty), mask=mask)


def quantised_gemm(
    x: torch.Tensor, weight: QuantisedWeight, *, is_deterministic: bool = False, tile: GemmTile | None = None
) -> torch.Tensor:
    """``x`` times the transpose of ``weight``. Shapes: see the module.

    Deterministic, the tile is that of a middling batch, whatever this one is.
    """
    num_rows, in_features = x.shape
    out_features = weight.codes.shape[0]
    if in_features != weight.in_features:
        raise ValueError(f"x {tuple(x.shape)} does not fit a weight of {weight.in_features} inputs")
    if x.stride(1) != 1 or weight.codes.stride(1) != 1 or not weight.scales.is_contiguous():
        raise ValueError("x, codes and scales need a dense last dimension; call .contiguous() first")
    output = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    if output.numel() == 0:
        return output
    bits = weight.bits
    shape = tile or quantised_gemm_tile(
        DETERMINISTIC_ROWS if is_deterministic else num_rows, x.dtype, bits=bits, group=weight.group
    )
    kernel = int4_gemm_kernel if bits == 4 else int8_gemm_kernel
    zeros = (weight.zeros,) if bits == 4 else ()
    kernel[(triton.cdiv(out_features, shape.columns), triton.cdiv(num_rows, shape.rows))](
        output,
        x,
        weight.codes,
        weight.scales,
        *zeros,
        num_rows,
        x.stride(0),
        weight.codes.stride(0),
        OUT_FEATURES=out_features,
        IN_FEATURES=in_features,
        **_blocks(shape, bits, weight.group, has_zeros=weight.zeros is not None),
        num_warps=warps_here(shape.num_warps),
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
    return output


def _blocks(tile: GemmTile, bits: int, group: int, *, has_zeros: bool) -> dict[str, int | bool]:
    inner = (
        {"GROUP": group, "HAS_ZEROS": has_zeros}
        if bits == 4
        else {"DEPTH": group or tile.depth, "HAS_GROUPS": group > 0}
    )
    return inner | {"ROWS": tile.rows, "COLUMNS": tile.columns}


def quantised_gemm_tile(num_rows: int, dtype: torch.dtype, *, bits: int, group: int) -> GemmTile:
    """Flat tiles with much in flight for few rows, tall ones for many; ``depth`` is the group where there are any."""
    if bits == 8 and group:
        return _grouped_int8_tile(num_rows, dtype)
    if dtype == torch.float32:
        return GemmTile(rows=16, columns=32, depth=group or 32, num_warps={32: 1, 128: 8}.get(group, 4), num_stages=2)
    if num_rows <= 16 and group:  # 2 KiB of codes at once: 16 bytes a thread at least
        return GemmTile(rows=16, columns=4096 // group, depth=group, num_warps=2, num_stages=4)
    if num_rows <= 16:
        return GemmTile(rows=16, columns=32, depth=256, num_warps=4, num_stages=4)
    if num_rows <= 64 and group != 32:  # whose halves are too short for that few rows
        return GemmTile(rows=64, columns=64, depth=group or 64, num_warps=4, num_stages=3)
    if group:
        return GemmTile(rows=128, columns=64, depth=group, num_warps=8, num_stages=2 if group > 64 else 3)
    return GemmTile(rows=128, columns=128, depth=64, num_warps=8, num_stages=3)


def _grouped_int8_tile(num_rows: int, dtype: torch.dtype) -> GemmTile:
    if dtype == torch.float32:
        return GemmTile(rows=16, columns=32, depth=INT8_GROUP, num_warps=2, num_stages=2)
    if num_rows <= 16:
        return GemmTile(rows=16, columns=128, depth=INT8_GROUP, num_warps=4, num_stages=4)
    return GemmTile(rows=128, columns=64, depth=INT8_GROUP, num_warps=8, num_stages=3)


def variants() -> list[Variant]:
    """All kinds of codes and all tiles, at the MLP of an 8B model (14,336 to 4,096)."""
    found = []
    kinds = [
        (8, 0, torch.float32, False),
        (8, 32, torch.float16, False),
        (4, 128, torch.float32, False),
        (4, 128, torch.float32, True),
        (4, 32, torch.float16, False),
    ]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        finer = [(4, group, torch.float32, has_zeros) for group in (64, 32) for has_zeros in (False, True)]
        more = [*finer, (8, 32, torch.float32, False)] if dtype == torch.bfloat16 else []
        for bits, group, scales_dtype, has_zeros in kinds + more:
            types: dict[str, str | None] = {name: pointer(dtype) for name in ("output_ptr", "x_ptr")}
            types |= {"codes_ptr": "*u8" if bits == 4 else pointer(torch.int8), "scales_ptr": pointer(scales_dtype)}
            types |= {"zeros_ptr": "*u8" if has_zeros else None} if bits == 4 else {}
            tiles = {quantised_gemm_tile(num_rows, dtype, bits=bits, group=group): None for num_rows in (1, 64, 1024)}
            for tile in tiles:
                kind = (
                    f"int{bits}" + f"/{group}" * (group > 0) + "h" * (scales_dtype == torch.float16) + "z" * has_zeros
                )
                found.append(
                    Variant.of(
                        f"{kind}_gemm {tile.rows}x{tile.columns}x{tile.depth} {str(dtype).removeprefix('torch.')}",
                        int4_gemm_kernel if bits == 4 else int8_gemm_kernel,
                        types,
                        {"OUT_FEATURES": 4096, "IN_FEATURES": 14336} | _blocks(tile, bits, group, has_zeros=has_zeros),
                        num_warps=tile.num_warps,
                        num_stages=tile.num_stages,
                    )
                )
    return found
