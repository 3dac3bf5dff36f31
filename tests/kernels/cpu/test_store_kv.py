"""New keys and values land in their slots and nowhere else."""

from __future__ import annotations

import pytest
import torch

from kernels import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("head_dim", [64, 80, 20])
@pytest.mark.parametrize("pages_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_slot_holds_what_the_reference_stores(backend, dtype, pages_dtype, head_dim, block_size):
    key = torch.randn(40, 2, head_dim).to(dtype)
    value = torch.randn(40, 2, head_dim).to(dtype)
    slots = torch.randperm(5 * block_size)[:40]
    slots[[0, 7, 39]] = -1
    pages = [torch.full((5, 2, block_size, head_dim), 7.0, dtype=pages_dtype) for _ in range(4)]
    backend.store_kv(key, value, pages[0], pages[1], slots)
    reference.store_kv(key, value, pages[2], pages[3], slots)
    assert torch.equal(pages[0], pages[2])
    assert torch.equal(pages[1], pages[3])


@pytest.mark.parametrize("pages_dtype", [torch.bfloat16, torch.float16])
def test_narrowing_rounds_like_torch(native_each_variant, pages_dtype):
    bits = torch.randint(-(2**31), 2**31 - 1, (512, 1, 64), dtype=torch.int32)
    special = torch.tensor([0.0, -0.0, 65504.0, 65519.99, 65520.0, 6e-8, 2.9e-8, 6.1e-5, 1e-45, float("inf")])
    key = torch.cat([bits.view(torch.float32), special.repeat(7)[:64].view(1, 1, 64)])
    pages = torch.zeros(33, 1, 16, 64, dtype=pages_dtype)
    native_each_variant.store_kv(key, -key, pages, (other := pages.clone()), torch.arange(513))
    for stored, source in ((pages, key), (other, -key)):
        stored = stored.flatten(0, 2)[:513].float()
        assert torch.equal(stored.nan_to_num(1.5), source[:, 0].to(pages_dtype).float().nan_to_num(1.5))


def test_many_tokens_are_stored_by_many_threads(backend):
    key, value = torch.randn(2, 1000, 2, 64)
    pages = [torch.zeros(64, 2, 16, 64) for _ in range(4)]
    slots = torch.randperm(64 * 16)[:1000]
    backend.store_kv(key, value, pages[0], pages[1], slots)
    reference.store_kv(key, value, pages[2], pages[3], slots)
    assert torch.equal(pages[0], pages[2])
    assert torch.equal(pages[1], pages[3])


def test_keys_and_values_may_be_slices_and_pages_strided(backend):
    fused = torch.randn(9, 3 * 2 * 64)
    key, value = fused[:, 128:256].unflatten(1, (2, 64)), fused[:, 256:].unflatten(1, (2, 64))
    pages = torch.zeros(3, 2, 2, 16, 64)
    backend.store_kv(key, value, pages[:, 0], pages[:, 1], torch.arange(20, 29))
    expected = torch.zeros(2, 3, 2, 16, 64)
    reference.store_kv(key, value, expected[0], expected[1], torch.arange(20, 29))
    assert torch.equal(pages[:, 0], expected[0])
    assert torch.equal(pages[:, 1], expected[1])


def test_no_tokens_change_nothing(backend):
    pages = torch.ones(2, 1, 16, 64)
    backend.store_kv(torch.zeros(0, 1, 64), torch.zeros(0, 1, 64), pages, pages, torch.zeros(0, dtype=torch.int64))
    assert torch.equal(pages, torch.ones(2, 1, 16, 64))


@pytest.mark.parametrize("slot", [-2, 32])
def test_a_slot_outside_the_pages_is_refused_and_nothing_is_written(native, slot):
    pages = torch.zeros(2, 1, 16, 64)
    with pytest.raises(ValueError, match="slot_mapping is no slot"):
        native.store_kv(torch.ones(2, 1, 64), torch.ones(2, 1, 64), pages, pages, torch.tensor([3, slot]))
    assert not pages.any()


def test_wrong_shapes_are_named(native):
    pages = torch.zeros(2, 1, 16, 64)
    with pytest.raises(ValueError, match=r"to fit pages \[2, 1, 16, 64\] float32"):
        native.store_kv(torch.zeros(1, 2, 64), torch.zeros(1, 2, 64), pages, pages, torch.tensor([1]))
    with pytest.raises(ValueError, match="slot_mapping"):
        native.store_kv(torch.zeros(1, 1, 64), torch.zeros(1, 1, 64), pages, pages, torch.tensor([1, 2]))
