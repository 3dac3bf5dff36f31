"""The interpreter, as patched, computes bfloat16 as torch does; without this the kernel tests prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU, not in the interpreter")


def interpreted(kernel: Callable[..., None]) -> Callable[..., None]:
    """The kernel as one program; decorated here, while ``TRITON_INTERPRET`` is set."""
    launch: Callable[..., None] = triton.jit(kernel)[(1,)]
    return launch


def copy_kernel(source_ptr, target_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(target_ptr + index, tl.load(source_ptr + index).to(target_ptr.dtype.element_ty))


def dot_kernel(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out_ptr + index, tl.dot(tl.load(a_ptr + index), tl.load(b_ptr + index)))


def add_kernel(source_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    value = tl.load(source_ptr + index)
    tl.store(source_ptr + index, value + value)


def sum_kernel(source_ptr, target_ptr, SIZE: tl.constexpr):
    tl.store(target_ptr, tl.sum(tl.load(source_ptr + tl.arange(0, SIZE)), axis=0))


def test_every_bfloat16_widens_to_the_float32_torch_makes_of_it() -> None:
    source = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    target = torch.empty(2**16)
    interpreted(copy_kernel)(source, target, SIZE=2**16)
    torch.testing.assert_close(target, source.float(), rtol=0, atol=0, equal_nan=True)


def test_float32_rounds_to_the_bfloat16_torch_rounds_to() -> None:
    bits = torch.randint(-(2**31), 2**31, (2**16,), generator=torch.Generator().manual_seed(0))
    ties = torch.arange(2**12, dtype=torch.int64) * 2**16 + 0x3F808000  # halfway between two neighbours
    source = torch.cat([bits, ties]).to(torch.int32).view(torch.float32)[: 2**16 + 2**12]
    source = torch.cat([source, torch.zeros(2**17 - source.numel())])
    target = torch.empty(2**17, dtype=torch.bfloat16)
    interpreted(copy_kernel)(source, target, SIZE=2**17)
    torch.testing.assert_close(target, source.to(torch.bfloat16), rtol=0, atol=0, equal_nan=True)


def test_every_fp8_widens_to_the_float32_torch_makes_of_it() -> None:
    source = torch.arange(2**8, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    target = torch.empty(2**8)
    interpreted(copy_kernel)(source, target, SIZE=2**8)
    torch.testing.assert_close(target, source.float(), rtol=0, atol=0, equal_nan=True)


def test_float32_rounds_to_the_fp8_torch_rounds_to() -> None:
    """All neighbours' middles, and what lies just beside them."""
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    positive = torch.cat([codes, middles, middles.nextafter(torch.tensor(0.0)), middles.nextafter(torch.tensor(448.0))])
    source = torch.nn.functional.pad(torch.cat([positive, -positive]), (0, 2**10 - 2 * positive.numel()))
    target = torch.empty(2**10, dtype=torch.float8_e4m3fn)
    interpreted(copy_kernel)(source, target, SIZE=2**10)
    assert torch.equal(target.view(torch.uint8), source.to(torch.float8_e4m3fn).view(torch.uint8))


def test_a_dot_of_bfloat16_is_exact_in_float32() -> None:
    a, b = torch.randint(-8, 9, (2, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    out = torch.empty(32, 32)
    interpreted(dot_kernel)(a, b, out, SIZE=32)
    assert torch.equal(out, a.float() @ b.float())


def test_other_arithmetic_on_bfloat16_is_refused() -> None:
    source = torch.ones(16, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="widen to float32 first"):
        interpreted(add_kernel)(source, SIZE=16)
    with pytest.raises(Exception, match="widen to float32 first"):
        interpreted(sum_kernel)(source, torch.empty(1), SIZE=16)
