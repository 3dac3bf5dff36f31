"""The page tensors: shapes, bytes, and where each layer's part of a page lies."""

from __future__ import annotations

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
    for dtype in (torch.float32, torch.bfloat16):
        cache = cache_of(GEMMA3_270M, dtype)
        total = sum(tensor.nbytes for tensor in (*cache.key_pages, *cache.value_pages))
        assert total == (cache.num_pages + 1) * cache.page_bytes


def test_no_two_layers_share_a_place() -> None:
    cache = cache_of(GEMMA3_270M)
    places = [cache.place(layer) for layer in range(18)]
    assert len(set(places)) == 18
    assert [places[layer] for layer in (5, 11, 17)] == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    sliding = [places[layer] for layer in range(18) if layer not in (5, 11, 17)]
    assert sliding == [(1, column, slot) for column in range(5) for slot in range(3)]


def test_tensors_of_different_slots_do_not_overlap() -> None:
    cache = cache_of([None, None, 8, 8])
    tensors = [*cache.key_pages, *cache.value_pages]
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    assert [tensor.float().unique().tolist() for tensor in tensors] == [[0.0], [1.0], [2.0], [3.0]]
