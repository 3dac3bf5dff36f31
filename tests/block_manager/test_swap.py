"""Swapping: a sequence leaves no device page behind, comes back where it was, or is dropped."""

from __future__ import annotations

import pytest

from block_manager.block import NULL_PAGE
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.transfers import TransferKind


def start(blocks: BlockManager, name: str, token_ids: list[int]) -> BlockHashes:
    hashes = BlockHashes(blocks.block_size)
    hashes.extend(token_ids)
    assert blocks.admit(name, blocks.match_prefix(hashes, len(token_ids)), len(token_ids))
    blocks.commit(name, len(token_ids), hashes)
    return hashes


def test_a_swapped_sequence_holds_host_pages_only_and_comes_back_with_its_positions() -> None:
    blocks = BlockManager(plan_groups([None, 8]), 20, 4, num_host_pages=20, enable_prefix_caching=False)
    start(blocks, "a", list(range(18)))
    before = [list(table) for table in blocks.block_tables("a")]
    held = blocks.usage().held
    usage = blocks.swap_out("a")
    assert usage is not None
    assert usage.peak_pages >= held
    assert (blocks.usage().held, blocks.usage().free) == (0, 20)
    assert blocks.host.swapped_pages == blocks.swapped["a"].device_pages == held
    assert "a" not in blocks.sequences
    assert blocks.audit() == []
    assert blocks.swap_in("a", 19)
    after = [list(table) for table in blocks.block_tables("a")]
    assert [[NULL_PAGE in pages for pages in table] for table in after] == [
        [NULL_PAGE in pages for pages in table] for table in before
    ]
    assert blocks.sequences["a"].num_tokens == 18
    assert blocks.sequence_usage("a").held_pages == blocks.usage().held == held
    assert blocks.host.swapped_pages == 0
    out, back = blocks.take_transfers()
    assert (out.kind, back.kind) == (TransferKind.OUT, TransferKind.IN)
    assert back.sources == out.targets
    assert out.sources == tuple(page for table in before for block in table for page in block if page != NULL_PAGE)
    assert back.targets == tuple(page for table in after for block in table for page in block if page != NULL_PAGE)
    assert blocks.audit() == []


def test_a_full_host_refuses_and_nothing_moves() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4, num_host_pages=1)
    start(blocks, "a", list(range(6)))
    assert blocks.swap_out("a") is None
    assert blocks.take_transfers() == ()
    assert (blocks.usage().held, blocks.host.free_pages) == (2, 1)
    assert blocks.swapped == {}


def test_too_few_pages_leave_a_sequence_on_the_host() -> None:
    blocks = BlockManager(plan_groups([None]), 3, 4, num_host_pages=3)
    start(blocks, "a", list(range(6)))
    assert blocks.swap_out("a") is not None
    start(blocks, "b", [50, 51, 52])
    assert not blocks.swap_in("a", 9)  # three pages
    assert blocks.host.swapped_pages == 2
    assert blocks.swap_in("a", 8)
    assert blocks.audit() == []


def test_dropping_gives_host_pages_back_and_frees_the_name() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4, num_host_pages=4)
    start(blocks, "a", list(range(6)))
    assert blocks.swap_out("a") is not None
    with pytest.raises(ValueError, match="a has a table already"):
        start(blocks, "a", [1])
    blocks.drop_swapped("a")
    assert blocks.host.free_pages == 4
    start(blocks, "a", [1])
    with pytest.raises(KeyError):
        blocks.swap_in("b", 1)
    assert blocks.audit() == []


def test_shared_pages_stay_with_those_who_share_them_and_come_back_as_copies() -> None:
    blocks = BlockManager(plan_groups([None]), 6, 4, num_host_pages=6)
    start(blocks, "a", list(range(6)))
    blocks.fork("a", "b")
    assert blocks.swap_out("b") is not None
    assert blocks.usage().held == 2
    assert blocks.usage().groups[0].shared == 0
    assert blocks.swap_in("b", 6)
    assert blocks.usage().held == 4
    assert not {page for block in blocks.block_tables("a")[0] for page in block} & {
        page for block in blocks.block_tables("b")[0] for page in block
    }
    assert blocks.audit() == []


def test_a_prefix_stays_findable_while_its_sequence_is_away() -> None:
    blocks = BlockManager(plan_groups([None]), 6, 4, num_host_pages=6)
    hashes = start(blocks, "a", list(range(8)))
    assert blocks.swap_out("a") is not None
    assert blocks.match_prefix(hashes, 9).num_tokens == 8


def test_a_sequence_that_came_back_can_be_found_as_a_prefix_again() -> None:
    blocks = BlockManager(plan_groups([None]), 4, 4, num_host_pages=8)
    tokens = list(range(10))
    hashes = BlockHashes(4)
    hashes.extend(tokens)
    assert blocks.admit("a", blocks.match_prefix(hashes, 10), 10)
    blocks.commit("a", 10, hashes)
    assert blocks.swap_out("a") is not None
    blocks.drop_cache()
    assert blocks.match_prefix(hashes, 10).num_tokens == 0
    assert blocks.swap_in("a", 11)
    blocks.commit("a", 11, hashes)
    assert blocks.match_prefix(hashes, 10).num_tokens == 8
    assert blocks.audit() == []
