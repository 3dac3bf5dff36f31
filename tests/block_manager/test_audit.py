"""The audit can fail: each kind of corruption, made on purpose, is found and names its owner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from block_manager.block import KVBlock
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.page_map import PageState


@pytest.fixture
def blocks() -> BlockManager:
    """alice holds 3 + 2 blocks, bob shares two of them, carol is gone and her blocks are cached."""
    manager = BlockManager(plan_groups([None, 32]), 32, 16, num_host_pages=8)
    for name, first in (("carol", 500), ("alice", 0), ("bob", 0)):
        hashes = BlockHashes(16)
        hashes.extend(list(range(first, first + 48)))
        assert manager.admit(name, manager.match_prefix(hashes, 48), 48)
        manager.commit(name, 48, hashes)
    manager.free("carol")
    assert manager.audit() == []
    return manager


def held(blocks: BlockManager, name: str, index: int = -1, group: int = 0) -> KVBlock:
    block = blocks.sequences[name].tables[group].blocks[index]
    assert block is not None
    return block


def cached(blocks: BlockManager) -> KVBlock:
    return next(iter(blocks.pool._evictable))


def leak_a_free_page(blocks: BlockManager) -> str:
    page = blocks.pool._free_pages.pop()
    return f"page {page} is nowhere"


def free_a_page_twice(blocks: BlockManager) -> str:
    page = blocks.pool._free_pages[0]
    blocks.pool._free_pages.append(page)
    return f"page {page} is in the free list and in the free list"


def free_a_held_page(blocks: BlockManager) -> str:
    (page,) = held(blocks, "alice").pages
    blocks.pool._free_pages.append(page)
    return f"page {page} is in the free list and in the table of alice/full"


def free_a_cached_page(blocks: BlockManager) -> str:
    (page,) = cached(blocks).pages
    blocks.pool._free_pages.append(page)
    return f"page {page} is in the free list and in cached"


def give_a_page_to_two_sequences(blocks: BlockManager) -> str:
    (page,) = held(blocks, "alice").pages
    held(blocks, "bob").pages = (page,)
    blocks.sequences["bob"].tables[0].pages[-1] = (page,)
    return f"page {page} is in the table of alice/full and in the table of bob/full"


def invent_a_page(blocks: BlockManager) -> str:
    blocks.pool._free_pages.append(33)
    return "page 33 in the free list does not exist"


def hand_out_the_null_page(blocks: BlockManager) -> str:
    blocks.pool._free_pages.append(0)
    return "page 0 in the free list does not exist"


def forget_a_holder(blocks: BlockManager) -> str:
    block = held(blocks, "alice", 0)
    block.holders.discard(blocks.sequences["bob"].handle)
    return f"{block} is in the tables of alice/full, bob/full, but its holders are {block.holders}"


def count_a_holder_too_many(blocks: BlockManager) -> str:
    block = held(blocks, "bob")
    block.holders.add(99)
    return f"{block} is in the tables of bob/full, but its holders are {block.holders}"


def lose_a_table(blocks: BlockManager) -> str:
    (page,) = held(blocks, "alice").pages
    handle = blocks.sequences.pop("alice").handle
    return f"page {page} is nowhere; it was last held by sequence {handle}"


def keep_a_hash_of_a_freed_page(blocks: BlockManager) -> str:
    block = cached(blocks)
    blocks.pool._evictable.remove(block)
    blocks.pool.cached_pages[block.group] -= 1
    blocks.pool._free_pages.extend(block.pages)
    return f"{block} is registered, but neither cached nor in a table"


def keep_a_hash_of_a_page_now_used_for_other_tokens(blocks: BlockManager) -> str:
    block = held(blocks, "alice", 0)
    assert block.block_hash is not None
    block.block_hash = bytes(32)
    return "is registered under another hash or group"


def lose_the_registration_of_a_cached_block(blocks: BlockManager) -> str:
    block = cached(blocks)
    assert block.block_hash is not None
    del blocks.pool.index._by_hash[block.group][block.block_hash]
    return f"{block} cannot be found by its hash"


def lose_the_registration_of_a_held_block(blocks: BlockManager) -> str:
    block = held(blocks, "alice", 0)
    assert block.block_hash is not None
    del blocks.pool.index._by_hash[block.group][block.block_hash]
    return f"{block} cannot be found by its hash"


def queue_a_held_block_for_eviction(blocks: BlockManager) -> str:
    block = held(blocks, "alice")
    blocks.pool._evictable.append(block)
    return f"{block} is in the free queue"


def queue_a_block_without_hash(blocks: BlockManager) -> str:
    block = cached(blocks)
    block.block_hash = None
    return f"{block} is in the free queue"


def miscount_held_pages(blocks: BlockManager) -> str:
    blocks.pool.held_pages[1] += 1
    return "held pages counted [4, 3], kept [4, 4]"


def show_the_kernels_another_page(blocks: BlockManager) -> str:
    blocks.sequences["bob"].tables[1].pages[2] = (31,)
    return "bob/sliding_32 block 2 shows pages (31,)"


def forget_where_the_window_starts(blocks: BlockManager) -> str:
    blocks.sequences["alice"].tables[1].first_held = 0
    return "alice/sliding_32 block 0 is None, but the first held is 0"


def show_a_held_page_as_free(blocks: BlockManager) -> str:
    (page,) = held(blocks, "alice").pages
    blocks.pool.pages._states[page] = PageState.FREE
    return f"page {page} is in the table of alice/full, but the page map shows it as FREE"


def show_a_free_page_as_cached(blocks: BlockManager) -> str:
    page = blocks.pool._free_pages[0]
    blocks.pool.pages._states[page] = PageState.CACHED
    return f"page {page} is in the free list, but the page map shows it as CACHED"


def show_too_few_references(blocks: BlockManager) -> str:
    (page,) = held(blocks, "alice", 0).pages
    blocks.pool.pages._ref_counts[page] = 1
    return f"page {page} in the table of alice/full has ref_count and hash (2, "


def show_another_holder(blocks: BlockManager) -> str:
    (page,) = held(blocks, "bob").pages
    blocks.pool.pages._holders[page] = blocks.sequences["alice"].handle
    return f"page {page} in the table of bob/full is not held by sequence {blocks.sequences['alice'].handle}"


def show_a_holder_of_a_free_page(blocks: BlockManager) -> str:
    page = blocks.pool._free_pages[0]
    blocks.pool.pages._holders[page] = 2
    return f"page {page} in the free list is not held by sequence 2"


def show_another_group(blocks: BlockManager) -> str:
    (page,) = held(blocks, "bob").pages
    blocks.pool.pages._groups[page] = 1
    return f"page {page} in the table of bob/full is of group 0; the page map shows 1"


def show_another_hash(blocks: BlockManager) -> str:
    (page,) = cached(blocks).pages
    blocks.pool.pages._hash_prefixes[page] ^= 1
    return "has ref_count and hash (0, "


def miscount_cached_pages(blocks: BlockManager) -> str:
    blocks.pool.cached_pages[0] -= 1
    return "cached pages counted [3, 4], kept [2, 4]"


def miscount_shared_pages(blocks: BlockManager) -> str:
    blocks.pool.shared_pages[1] += 1
    return "shared pages counted [2, 1], kept [2, 2]"


def miscount_evictable_pages(blocks: BlockManager) -> str:
    blocks.pool._num_cached += 1
    return "8 pages are said to be evictable: [3, 4]"


def miscount_a_sequence(blocks: BlockManager) -> str:
    blocks.sequences["bob"].held_pages += 1
    return "bob holds 5 pages; kept 6"


def lose_a_host_page(blocks: BlockManager) -> str:
    blocks.host._free_pages.remove(2)
    return "host page 2 is nowhere"


def free_a_swapped_host_page(blocks: BlockManager) -> str:
    assert blocks.swap_out("bob") is not None
    page = blocks.swapped["bob"].pages[0]
    blocks.host._free_pages.append(page)
    return f"host page {page} is in the host's free list and in swapped bob"


@pytest.mark.parametrize(
    "corrupt",
    [
        leak_a_free_page,
        free_a_page_twice,
        free_a_held_page,
        free_a_cached_page,
        give_a_page_to_two_sequences,
        invent_a_page,
        hand_out_the_null_page,
        forget_a_holder,
        count_a_holder_too_many,
        lose_a_table,
        keep_a_hash_of_a_freed_page,
        keep_a_hash_of_a_page_now_used_for_other_tokens,
        lose_the_registration_of_a_cached_block,
        lose_the_registration_of_a_held_block,
        queue_a_held_block_for_eviction,
        queue_a_block_without_hash,
        miscount_held_pages,
        show_the_kernels_another_page,
        forget_where_the_window_starts,
        show_a_held_page_as_free,
        show_a_free_page_as_cached,
        show_too_few_references,
        show_another_holder,
        show_a_holder_of_a_free_page,
        show_another_group,
        show_another_hash,
        miscount_cached_pages,
        miscount_shared_pages,
        miscount_evictable_pages,
        miscount_a_sequence,
        lose_a_host_page,
        free_a_swapped_host_page,
    ],
)
def test_the_audit_names(blocks: BlockManager, corrupt: Callable[[BlockManager], str]) -> None:
    wanted = corrupt(blocks)
    problems = blocks.audit()
    assert any(wanted in problem for problem in problems), problems
