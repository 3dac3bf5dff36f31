"""Rotary position embedding of all heads of a step's tokens (Su et al., 2021).

Two layouts of the pairs that turn together, of the first ``rotary_dim`` elements of a head:

    halves         (x[i], x[i + rotary_dim / 2])    Llama, Gemma, Qwen ("NeoX")
    interleaved    (x[2 i], x[2 i + 1])             GPT-J, GLM; checkpoints in the layout of the paper

Contract
    x           [num_tokens, num_heads, head_dim], any strides with a dense last dimension: a slice of a projection
    cos, sin    float32 [num_tokens, 1, rotary_dim / 2] or without the 1, dense, of each token's angles;
                ``rotary_dim`` is even and at most head_dim, elements behind it are copied
    output      like x, dense, unless ``output`` is given; it may be x itself

Numerics: float32, rounded once. Knows no positions and no frequencies: all layers of a step share the angles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.variant import Variant, pointer

PAIRS_PER_PROGRAM = 2048
NUM_WARPS = 4


@triton.jit
def turn(first, second, cos, sin):
    """The pair turned by its angle."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def rotate_kernel(
    output_ptr,
    x_ptr,
    cos_ptr,
    sin_ptr,
    x_token_stride,
    x_head_stride,
    output_token_stride,
    output_head_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    REST_PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """``HEADS`` heads of one token. ``REST_PADDED`` 0: nothing to copy. Grid: (num_tokens, head blocks)."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = heads < NUM_HEADS
    x_rows = x_ptr + token * x_token_stride + heads * x_head_stride
    output_rows = output_ptr + token * output_token_stride + heads * output_head_stride

    pairs = tl.arange(0, HALF_PADDED)
    cos = tl.load(cos_ptr + token * HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    if INTERLEAVED:
        dims = tl.arange(0, 2 * HALF_PADDED)
        mask = is_head[:, None] & (dims < 2 * HALF)[None, :]
        x = tl.load(x_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(x, (HEADS, HALF_PADDED, 2)))
        first, second = turn(first, second, cos, sin)
        turned = tl.reshape(tl.join(first, second), (HEADS, 2 * HALF_PADDED))
        tl.store(output_rows[:, None] + dims[None, :], turned.to(output_ptr.dtype.element_ty), mask=mask)
    else:
        mask = is_head[:, None] & (pairs < HALF)[None, :]
        first = tl.load(x_rows[:, None] + pairs[None, :], mask=mask, other=0.0).to(tl.float32)
        second = tl.load(x_rows[:, None] + HALF + pairs[None, :], mask=mask, other=0.0).to(tl.float32)
        first, second = turn(first, second, cos, sin)
        tl.store(output_rows[:, None] + pairs[None, :], first.to(output_ptr.dtype.element_ty), mask=mask)
        tl.store(output_rows[:, None] + HALF + pairs[None, :], second.to(output_ptr.dtype.element_ty), mask=mask)
    if REST_PADDED > 0:
        rest = 2 * HALF + tl.arange(0, REST_PADDED)
        mask = is_head[:, None] & (rest < HEAD_DIM)[None, :]
        kept = tl.load(x_rows[:, None] + rest[None, :], mask=mask, other=0.0)
        tl.store(output_rows[:, None] + rest[None, :], kept, mask=mask)


def rotate(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """Turn every head of ``x`` by its token's angles; returns ``output``. Shapes: see the module."""
    num_tokens, num_heads, head_dim = x.shape
    half = cos.shape[-1]
    if 2 * half > head_dim or cos.shape != sin.shape or cos.numel() != num_tokens * half:
        raise ValueError(f"angles {tuple(cos.shape)}, {tuple(sin.shape)} do not fit {num_tokens} heads of {head_dim}")
    if not (cos.is_contiguous() and sin.is_contiguous() and cos.dtype == sin.dtype == torch.float32):
        raise ValueError("cosines and sines must be dense float32")
    if output is None:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.stride(2) != 1 or output.stride(2) != 1 or output.shape != x.shape:
        raise ValueError("x and output need the same shape and a dense last dimension")
    if num_tokens == 0:
        return output
    heads = heads_per_program(num_heads, half)
    rest = 0 if output.data_ptr() == x.data_ptr() else head_dim - 2 * half
    rotate_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        output,
        x,
        cos,
        sin,
        *x.stride()[:2],
        *output.stride()[:2],
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        REST_PADDED=triton.next_power_of_2(rest) if rest else 0,
        HEADS=heads,
        INTERLEAVED=interleaved,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return output


def heads_per_program(num_heads: int, half: int) -> int:
    """A power of two."""
    most = max(1, PAIRS_PER_PROGRAM // (1 << (half - 1).bit_length()))
    return min(1 << (num_heads - 1).bit_length(), most)


def variants() -> list[Variant]:
    """Both layouts, whole and partial heads, out of place."""
    shapes = ((128, 64, 32), (256, 128, 8), (64, 32, 64), (128, 32, 32))
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for head_dim, half, num_heads in shapes if dtype == torch.bfloat16 else shapes[:1]:
            for interleaved in (False, True):
                rest = head_dim - 2 * half
                layout = "interleaved" if interleaved else "halves"
                found.append(
                    Variant.of(
                        f"rotary {layout} {2 * half}/{head_dim} {str(dtype).removeprefix('torch.')}",
                        rotate_kernel,
                        {name: pointer(dtype) for name in ("output_ptr", "x_ptr")}
                        | {name: pointer(torch.float32) for name in ("cos_ptr", "sin_ptr")},
                        {
                            "NUM_HEADS": num_heads,
                            "HEAD_DIM": head_dim,
                            "HALF": half,
                            "HALF_PADDED": half,
                            "REST_PADDED": rest,
                            "HEADS": heads_per_program(num_heads, half),
                            "INTERLEAVED": interleaved,
                        },
                        num_warps=NUM_WARPS,
                    )
                )
    return found
