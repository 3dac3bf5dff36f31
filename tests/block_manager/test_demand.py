"""How many pages a sequence would take, before it takes any."""

from __future__ import annotations

import random

import pytest

from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager


def opened(blocks: BlockManager, name: str, num_tokens: int, salt: str = "") -> BlockHashes:
    """A sequence with its first tokens computed in one step."""
    hashes = BlockHashes(blocks.block_size, salt)
    hashes.extend(list(range(num_tokens)))
    assert blocks.admit(name, blocks.match_prefix(hashes, num_tokens), num_tokens)
    blocks.commit(name, num_tokens, hashes)
    return hashes


@pytest.mark.parametrize(("reach", "pages"), [(0, 0), (10, 0), (12, 0), (13, 1), (16, 1), (17, 2), (40, 7)])
def test_a_full_group_takes_a_block_for_every_block_of_tokens(reach: int, pages: int) -> None:
    blocks = BlockManager(plan_groups([None]), 20, 4)
    opened(blocks, "s", 10)
    assert blocks.pages_to_grow("s", reach, 1) == blocks.pages_to_grow("s", reach, 8) == pages


@pytest.mark.parametrize(
    ("chunk", "reach", "pages"),
    [
        # window 8: 7 + chunk positions; after 20 tokens it holds blocks 3 and 4
        (1, 20, 0),
        (1, 21, 1),  # 8 positions touch at most three blocks
        (1, 400, 1),
        (2, 400, 1),
        (3, 400, 2),  # 10 positions touch at most four
        (6, 400, 2),
        (7, 400, 3),
        (7, 24, 1),  # no further than it grows
    ],
)
def test_a_window_takes_no_more_than_it_and_a_chunk_can_touch(chunk: int, reach: int, pages: int) -> None:
    blocks = BlockManager(plan_groups([8]), 40, 4)
    opened(blocks, "s", 20)
    assert blocks.usage().held == 2
    assert blocks.pages_to_grow("s", reach, chunk) == pages


def test_what_a_rollback_keeps_is_part_of_the_span() -> None:
    blocks = BlockManager(plan_groups([8]), 40, 4, max_rollback=4)
    opened(blocks, "s", 20)
    assert blocks.usage().held == 3
    assert blocks.pages_to_grow("s", 400, 1) == 1  # 7 + 1 + 4 positions touch at most four blocks
    assert blocks.pages_to_grow("s", 400, 3) == 2


def test_blocks_that_others_hold_too_return_nothing_when_a_window_moves_on() -> None:
    blocks = BlockManager(plan_groups([8]), 40, 4)
    opened(blocks, "s", 20)
    blocks.fork("s", "other")
    assert blocks.pages_to_grow("s", 400, 1) == 3
    blocks.free("other")
    assert blocks.pages_to_grow("s", 400, 1) == 1


def test_columns_of_a_group_count_each() -> None:
    blocks = BlockManager(plan_groups([None, 8, 8]), 80, 4)
    opened(blocks, "s", 20)
    # five blocks of the full group more; the windowed one may hold three, of two pages, and has two
    assert blocks.pages_to_grow("s", 40, 1) == 5 + 2


def test_a_last_block_that_others_hold_is_copied_first() -> None:
    blocks = BlockManager(plan_groups([None, 8]), 80, 4)
    opened(blocks, "s", 18)
    before = blocks.pages_to_grow("s", 20, 1)
    blocks.fork("s", "other")
    assert (before, blocks.pages_to_grow("s", 20, 1), blocks.pages_to_reach("s", 20)) == (0, 2, 2)
    assert blocks.pages_to_grow("s", 18, 1) == 0, "nothing is written"
    assert blocks.grow("s", 19)
    assert blocks.pages_to_grow("s", 20, 1) == blocks.pages_to_grow("other", 20, 1) == 0


@pytest.mark.parametrize("windows", [[None], [5], [None, 5], [5, 5, None, 5, 9]], ids=str)
@pytest.mark.parametrize("max_rollback", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_takes_more_on_its_way_than_was_said(windows: list[int | None], max_rollback: int, seed: int) -> None:
    """Grown step by step, beside a fork that comes and goes: at no time are more pages gone than `pages_to_grow`."""
    source = random.Random(seed)
    blocks = BlockManager(plan_groups(windows), 400, 4, max_rollback=max_rollback, enable_prefix_caching=False)
    num_tokens, chunk = source.randrange(1, 30), source.randrange(1, 9)
    hashes = opened(blocks, "s", num_tokens)
    if seed % 2:
        blocks.fork("s", "other")
    target = num_tokens + source.randrange(1, 80)
    said, available = blocks.pages_to_grow("s", target, chunk), blocks.available_pages
    most = 0
    while num_tokens < target:
        num_tokens = min(target, num_tokens + source.randrange(1, chunk + 1))
        assert blocks.grow("s", num_tokens)
        most = max(most, available - blocks.available_pages)
        assert most <= said
        blocks.commit("s", num_tokens, hashes)
    assert most > 0 or said == 0
    if windows == [None]:
        assert most == said
