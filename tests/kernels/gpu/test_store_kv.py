from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels import reference
from kernels.gpu.store_kv import BLOCK_TOKENS, store_kv

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def empty_pages(num_pages: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((num_pages, num_kv_heads, 16, head_dim), -7.0, dtype=dtype)


@pytest.mark.parametrize("page_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_land_in_their_slots_and_no_other_slot_changes(
    dtype: torch.dtype, page_dtype: torch.dtype, device: torch.device
) -> None:
    num_tokens = 2 * BLOCK_TOKENS + 3
    key, value = torch.randn(2, num_tokens, 2, 64).to(dtype)
    slots = torch.randperm(5 * 16)[:num_tokens]
    slots[[0, 17, -1]] = -1
    expected_keys, expected_values = (empty_pages(5, 2, 64, page_dtype) for _ in range(2))
    reference.store_kv(key, value, expected_keys, expected_values, slots)

    keys, values = (empty_pages(5, 2, 64, page_dtype).to(device) for _ in range(2))
    store_kv(key.to(device), value.to(device), keys, values, slots.to(device))

    assert torch.equal(keys.cpu(), expected_keys)
    assert torch.equal(values.cpu(), expected_values)


@pytest.mark.parametrize("head_dim", [80, 128, 256])
def test_head_dims_are_stored_whole_and_in_bounds(head_dim: int, device: torch.device) -> None:
    key, value = torch.randn(2, 3, 1, head_dim, device=device)
    keys, values = (empty_pages(2, 1, head_dim, torch.float32).to(device) for _ in range(2))
    store_kv(key, value, keys, values, torch.tensor([31, 0, 15], device=device))

    assert torch.equal(keys[[1, 0, 0], 0, [15, 0, 15]], key[:, 0])
    assert torch.equal(values[[1, 0, 0], 0, [15, 0, 15]], value[:, 0])
    assert (keys == -7.0).sum() == (values == -7.0).sum() == 29 * head_dim


def test_keys_and_values_may_be_slices_of_one_projection(device: torch.device) -> None:
    projected = torch.randn(4, (4 + 2 + 2) * 64, device=device)
    key = projected[:, 4 * 64 : 6 * 64].view(4, 2, 64)
    value = projected[:, 6 * 64 :].view(4, 2, 64)
    both = torch.zeros(3, 2, 2, 16, 64, device=device)  # pages that hold keys and values side by side
    store_kv(key, value, both[:, 0], both[:, 1], torch.tensor([33, 2, 40, 3], device=device))

    assert torch.equal(both[[2, 0, 2, 0], 0, :, [1, 2, 8, 3]], key)
    assert torch.equal(both[[2, 0, 2, 0], 1, :, [1, 2, 8, 3]], value)


def test_a_step_without_tokens_stores_nothing(device: torch.device) -> None:
    nothing = torch.empty(0, 1, 64, device=device)
    pages = empty_pages(1, 1, 64, torch.float32).to(device)
    store_kv(nothing, nothing, pages, pages, torch.empty(0, dtype=torch.int64, device=device))
    assert (pages == -7.0).all()


def test_slots_past_two_to_the_31_elements_are_reached(
    make_huge_pages: Callable[..., torch.Tensor], device: torch.device
) -> None:
    keys, values = make_huge_pages("keys"), make_huge_pages("values")
    key, value = torch.randn(2, 1, 1, 64, dtype=torch.float16, device=device)
    page = keys.shape[0] - 2
    store_kv(key, value, keys, values, torch.tensor([page * 16 + 5], device=device))
    assert torch.equal(keys[page, 0, 5], key[0, 0])
    assert torch.equal(values[page, 0, 5], value[0, 0])
