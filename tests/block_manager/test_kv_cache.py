"""The page tensors: shapes, bytes, and where each layer's part of a page lies."""

from __future__ import annotations

from mmap import PAGESIZE

import pytest
import torch

from block_manager.groups import plan_groups
from block_manager.kv_cache import KVCache

GEMMA3_270M = [None if (layer + 1) % 6 == 0 else 512 for layer in range(18)]


def cache_of(windows: list[int | None], dtype: torch.dtype = torch.bfloat16) -> KVCache:
    return KVCache(plan_groups(windows), 10, 16, 2, 8, dtype, torch.device("cpu"))


def test_gemma3_270m_pages_have_three_layer_slots() -> None:
    cache = cache_of(GEMMA3_270M)
    assert [tensor.shape for tensor in cache.key_pages] == [(11, 2, 16, 8)] * 3
    assert [tensor.shape for tensor in cache.value_pages] == [(11, 2, 16, 8)] * 3
    assert {tensor.dtype for tensor in (*cache.key_pages, *cache.value_pages)} == {torch.bfloat16}


def test_the_tensors_hold_exactly_the_bytes_of_their_pages_and_the_null_page() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn):
        cache = cache_of(GEMMA3_270M, dtype)
        total = sum(tensor.nbytes for tensor in cache.tensors())
        assert total == (cache.num_pages + 1) * cache.page_bytes


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_pages_come_with_a_float32_scale_per_position_and_head(dtype: torch.dtype) -> None:
    cache = cache_of(GEMMA3_270M, dtype)
    shapes = [(11, 2, 16, 8), (11, 2, 16, 8), (11, 2, 16), (11, 2, 16)]
    for slot in range(3):
        tensors = cache.slot_tensors(slot)
        assert [tensor.shape for tensor in tensors] == shapes
        assert [tensor.dtype for tensor in tensors] == [dtype, dtype, torch.float32, torch.float32]
    assert cache.page_bytes == 2 * 3 * 2 * 16 * (8 + 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_pages_have_no_scales(dtype: torch.dtype) -> None:
    cache = cache_of(GEMMA3_270M, dtype)
    assert [tensor.shape for tensor in cache.slot_tensors(2)] == [(11, 2, 16, 8)] * 2
    assert len(cache.tensors()) == 6


def test_no_two_layers_share_a_place() -> None:
    cache = cache_of(GEMMA3_270M)
    places = [cache.place(layer) for layer in range(18)]
    assert len(set(places)) == 18
    assert [places[layer] for layer in (5, 11, 17)] == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    sliding = [places[layer] for layer in range(18) if layer not in (5, 11, 17)]
    assert sliding == [(1, column, slot) for column in range(5) for slot in range(3)]


def test_tensors_of_different_slots_do_not_overlap() -> None:
    cache = cache_of([None, None, 8, 8], torch.int8)
    for value, tensor in enumerate(cache.tensors()):
        tensor.fill_(value)
    assert [tensor.float().unique().tolist() for tensor in cache.tensors()] == [[float(n)] for n in range(8)]
    found = [tensor.unique().item() for slot in range(2) for tensor in cache.slot_tensors(slot)]
    assert found == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_touching_pages_writes_into_every_page_of_the_system_that_begins_in_them_and_into_no_other(
    dtype: torch.dtype,
) -> None:
    cache = KVCache(plan_groups([None]), 4, 16, 2, 256, dtype, torch.device("cpu"))
    for tensor in cache.tensors():
        tensor.view(torch.uint8).fill_(1)
    cache.touch([2, 3])
    for tensor in cache.tensors():
        pages = tensor.view(torch.uint8).flatten(1)
        written = (pages == 0).nonzero().tolist()
        assert written == [[page, place] for page in (2, 3) for place in range(0, pages.shape[1], PAGESIZE)]
