"""Sizing: the arithmetic at the door against an allocator that really grows."""

from __future__ import annotations

import pytest

from block_manager.block_pool import OutOfPages
from block_manager.groups import LayerGroup, plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity, page_bytes

PLANS = {
    "full": [None],
    "sliding": [9],
    "full+sliding": [None, 9],
    "gemma3-like": [8, 8, 8, 8, 8, None],
    "two windows": [None, 5, 14, 14],
}
BLOCK = 4


def most_pages_while_growing(groups: tuple[LayerGroup, ...], num_tokens: int, chunk: int, offset: int) -> int:
    """Pages a lone sequence really holds at worst, with chunks of ``chunk`` after a first one of ``offset`` tokens."""
    blocks = BlockManager(groups, 10_000, BLOCK, enable_prefix_caching=False)
    hashes, computed, most = BlockHashes(BLOCK), 0, 0
    first = min(offset or chunk, num_tokens)
    assert blocks.admit("s", blocks.match_prefix(hashes, num_tokens), first)
    step = first
    while True:
        most = max(most, blocks.usage().held)
        computed += step
        blocks.commit("s", computed, hashes)
        if computed == num_tokens:
            return most
        step = min(chunk, num_tokens - computed)
        assert blocks.grow("s", computed + step)


@pytest.mark.parametrize("windows", PLANS.values(), ids=PLANS)
def test_peak_pages_bounds_every_way_to_grow_and_by_less_than_a_block_of_each_window(
    windows: list[int | None],
) -> None:
    groups = plan_groups(windows)
    slack = sum(group.pages_per_block for group in groups if group.window is not None)
    for chunk in (1, 3, 4, 7):
        for num_tokens in (1, 3, 4, 5, 8, 9, 16, 17, 30, 31, 32, 33, 41):
            worst = max(most_pages_while_growing(groups, num_tokens, chunk, offset) for offset in range(chunk))
            peak = Capacity(groups, BLOCK, 1, chunk).peak_pages(num_tokens, chunk)
            assert worst <= peak <= worst + slack, (chunk, num_tokens)


def test_peak_pages_of_full_layers_is_the_number_of_blocks() -> None:
    capacity = Capacity(plan_groups([None, None]), 16, 49, 512)
    assert [capacity.peak_pages(n, 512) for n in (1, 15, 16, 17, 784, 785)] == [1, 1, 1, 2, 49, 50]


@pytest.mark.parametrize("windows", PLANS.values(), ids=PLANS)
def test_what_fits_runs_to_its_end_alone_with_its_largest_chunk(windows: list[int | None]) -> None:
    """In every pool: a lone sequence that `fits` grows to its end; the next larger chunk is over the bound."""
    groups = plan_groups(windows)
    for num_pages in range(1, 40):
        capacity = Capacity(groups, BLOCK, num_pages, 16)
        for num_tokens in (1, 4, 5, 13, 16, 17, 29):
            chunk = capacity.largest_chunk(num_tokens)
            assert (chunk >= 1) == capacity.fits(num_tokens)
            if chunk:
                assert most_pages_while_growing(groups, num_tokens, chunk, 0) <= num_pages
            if chunk < 16:
                assert capacity.peak_pages(num_tokens, chunk + 1) > num_pages


@pytest.mark.parametrize("windows", PLANS.values(), ids=PLANS)
def test_max_tokens_is_the_last_length_that_fits(windows: list[int | None]) -> None:
    groups = plan_groups(windows)
    for num_pages in range(1, 40):
        capacity = Capacity(groups, BLOCK, num_pages, 16)
        fitting = [n for n in range(1, 61) if capacity.fits(n)]
        assert capacity.max_tokens(60) == len(fitting)
        assert fitting == list(range(1, len(fitting) + 1))


def test_a_window_that_fits_serves_any_length() -> None:
    capacity = Capacity(plan_groups([512] * 4), 16, 33, 1)
    assert capacity.fits(1_000_000)
    assert not Capacity(plan_groups([512] * 4), 16, 32, 1).fits(1_000_000)
    assert capacity.max_tokens(1_000_000) == 1_000_000


def test_f03_the_null_page_is_not_counted() -> None:
    """A pool of n pages holds n pages of tokens, by the arithmetic and by the allocator."""
    capacity = Capacity(plan_groups([None]), 16, 49, 512)
    assert capacity.max_tokens(2048) == 784
    blocks = BlockManager(plan_groups([None]), 49, 16)
    nothing = blocks.match_prefix(BlockHashes(16), 784)
    assert not blocks.admit("s", nothing, 785)
    assert blocks.admit("s", nothing, 784)
    with pytest.raises(OutOfPages):
        blocks.pool.allocate(0, 1, 0)


def test_page_bytes_counts_keys_and_values_of_every_layer_of_a_page() -> None:
    gemma = plan_groups([None if (layer + 1) % 6 == 0 else 512 for layer in range(18)])
    assert page_bytes(gemma, 16, 1, 256, 2) == 2 * 3 * 16 * 256 * 2
    assert page_bytes(plan_groups([None]), 32, 8, 64, 4) == 2 * 32 * 8 * 64 * 4


def test_page_bytes_counts_a_scale_for_each_key_and_value_of_a_head() -> None:
    gemma = plan_groups([None if (layer + 1) % 6 == 0 else 512 for layer in range(18)])
    assert page_bytes(gemma, 16, 1, 256, 1, 4) == 2 * 3 * 16 * (256 + 4)
    assert page_bytes(plan_groups([None]), 32, 8, 64, 1, 4) == 2 * 32 * 8 * (64 + 4)
