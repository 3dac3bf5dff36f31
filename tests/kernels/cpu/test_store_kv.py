"""New keys and values land in their slots and nowhere else."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.attention import KVPages

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
QUANTISED = [torch.int8, torch.float8_e4m3fn]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def filled_pages(shape: tuple[int, ...], dtype: torch.dtype, fill: float = 7.0) -> KVPages:
    tensors = [torch.full(shape, fill).to(dtype) for _ in range(2)]
    if dtype in QUANTISED:
        tensors += [torch.full(shape[:3], fill) for _ in range(2)]
    return KVPages(*tensors)


def assert_same_pages(actual: KVPages, expected: KVPages) -> None:
    """Bit for bit; all NaN scales are one."""
    for name in ("key", "value", "key_scales", "value_scales"):
        one, other = getattr(actual, name), getattr(expected, name)
        if name.endswith("scales") and one is not None:
            assert torch.equal(one.isnan(), other.isnan()), name
            one, other = one.nan_to_num(1.5), other.nan_to_num(1.5)
        if one is not None:
            assert torch.equal(one.view(BITS[one.dtype.itemsize]), other.view(BITS[one.dtype.itemsize])), name


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("head_dim", [64, 80, 20])
@pytest.mark.parametrize("pages_dtype", DTYPES + QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_slot_holds_what_the_reference_stores(backend, dtype, pages_dtype, head_dim, block_size):
    key = torch.randn(40, 2, head_dim).to(dtype)
    value = torch.randn(40, 2, head_dim).to(dtype)
    slots = torch.randperm(5 * block_size)[:40]
    slots[[0, 7, 39]] = -1
    pages, expected = (filled_pages((5, 2, block_size, head_dim), pages_dtype) for _ in range(2))
    backend.store_kv(key, value, pages, slots)
    reference.store_kv(key, value, expected, slots)
    assert_same_pages(pages, expected)


@pytest.mark.parametrize("pages_dtype", [torch.bfloat16, torch.float16])
def test_narrowing_rounds_like_torch(native_each_variant, pages_dtype):
    bits = torch.randint(-(2**31), 2**31 - 1, (512, 1, 64), dtype=torch.int32)
    special = torch.tensor([0.0, -0.0, 65504.0, 65519.99, 65520.0, 6e-8, 2.9e-8, 6.1e-5, 1e-45, float("inf")])
    key = torch.cat([bits.view(torch.float32), special.repeat(7)[:64].view(1, 1, 64)])
    pages = torch.zeros(33, 1, 16, 64, dtype=pages_dtype)
    native_each_variant.store_kv(key, -key, KVPages(pages, other := pages.clone()), torch.arange(513))
    for stored, source in ((pages, key), (other, -key)):
        stored = stored.flatten(0, 2)[:513].float()
        assert torch.equal(stored.nan_to_num(1.5), source[:, 0].to(pages_dtype).float().nan_to_num(1.5))


@pytest.mark.parametrize("head_dim", [5, 64, 80])
@pytest.mark.parametrize("pages_dtype", QUANTISED)
def test_every_variant_quantises_rows_of_every_size_as_the_reference_does(native_each_variant, pages_dtype, head_dim):
    """Any bits at all, all sizes, ties and neighbours of ties, zeros, and rows with NaN and infinities."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (64, 1, head_dim), dtype=torch.int32, generator=generator)
    sized = torch.randn(64, 1, head_dim, generator=generator) * 10.0 ** torch.linspace(-44, 37, 64)[:, None, None]
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    if pages_dtype == torch.int8:
        middles = torch.arange(-127, 127) + 0.5
    exact = torch.cat([middles, middles.nextafter(torch.tensor(0.0)), middles.nextafter(torch.tensor(1e9))])
    ties = exact[torch.randint(0, len(exact), (64, 1, head_dim), generator=generator)]
    ties[:, :, 0] = 127.0 if pages_dtype == torch.int8 else 448.0
    key = torch.cat([bits.view(torch.float32), sized, ties, -ties])
    key[128, 0, :] = 0.0
    key[129, 0, -1], key[130, 0, 1], key[131, 0, 2] = float("nan"), float("inf"), float("-inf")
    pages, expected = (filled_pages((16, 1, 16, head_dim), pages_dtype) for _ in range(2))
    native_each_variant.store_kv(key, key.flip(0), pages, torch.arange(256))
    reference.store_kv(key, key.flip(0), expected, torch.arange(256))
    assert expected.key_scales.isnan().sum() >= 3
    assert_same_pages(pages, expected)


@pytest.mark.parametrize("pages_dtype", [torch.float32, *QUANTISED])
def test_many_tokens_are_stored_by_many_threads(backend, pages_dtype):
    key, value = torch.randn(2, 1000, 2, 64)
    pages, expected = (filled_pages((64, 2, 16, 64), pages_dtype) for _ in range(2))
    slots = torch.randperm(64 * 16)[:1000]
    backend.store_kv(key, value, pages, slots)
    reference.store_kv(key, value, expected, slots)
    assert_same_pages(pages, expected)


def test_keys_and_values_may_be_slices_and_pages_strided(backend):
    fused = torch.randn(9, 3 * 2 * 64)
    key, value = fused[:, 128:256].unflatten(1, (2, 64)), fused[:, 256:].unflatten(1, (2, 64))
    pages = torch.zeros(3, 2, 2, 16, 64)
    backend.store_kv(key, value, KVPages(pages[:, 0], pages[:, 1]), torch.arange(20, 29))
    expected = torch.zeros(2, 3, 2, 16, 64)
    reference.store_kv(key, value, KVPages(*expected), torch.arange(20, 29))
    assert torch.equal(pages[:, 0], expected[0])
    assert torch.equal(pages[:, 1], expected[1])


def test_no_tokens_change_nothing(backend):
    pages = torch.ones(2, 1, 16, 64)
    backend.store_kv(
        torch.zeros(0, 1, 64), torch.zeros(0, 1, 64), KVPages(pages, pages), torch.zeros(0, dtype=torch.int64)
    )
    assert torch.equal(pages, torch.ones(2, 1, 16, 64))


@pytest.mark.parametrize("slot", [-2, 32])
def test_a_slot_outside_the_pages_is_refused_and_nothing_is_written(native, slot):
    pages = torch.zeros(2, 1, 16, 64)
    with pytest.raises(ValueError, match="slot_mapping is no slot"):
        native.store_kv(torch.ones(2, 1, 64), torch.ones(2, 1, 64), KVPages(pages, pages), torch.tensor([3, slot]))
    assert not pages.any()


def test_wrong_shapes_are_named(native):
    pages = filled_pages((2, 1, 16, 64), torch.float32)
    with pytest.raises(ValueError, match=r"to fit pages \[2, 1, 16, 64\] float32"):
        native.store_kv(torch.zeros(1, 2, 64), torch.zeros(1, 2, 64), pages, torch.tensor([1]))
    with pytest.raises(ValueError, match="slot_mapping"):
        native.store_kv(torch.zeros(1, 1, 64), torch.zeros(1, 1, 64), pages, torch.tensor([1, 2]))
