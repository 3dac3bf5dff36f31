"""The host tier: swapped pages push stored prefixes out, never the other way round."""

from __future__ import annotations

import pytest

from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.host_tier import HostTier
from block_manager.manager import BlockManager
from block_manager.transfers import TransferKind


def counts(host: HostTier) -> tuple[int, int, int]:
    assert host.free_pages + host.prefix_pages + host.swapped_pages == host.num_pages
    return host.free_pages, host.prefix_pages, host.swapped_pages


def test_stored_blocks_are_found_by_group_and_hash() -> None:
    host = HostTier(4)
    pages = host.store(1, b"x", 3)
    assert pages is not None
    assert len(set(pages)) == 3
    assert counts(host) == (1, 3, 0)
    found = host.find(1, b"x")
    assert found is not None
    assert found.pages == pages
    assert host.find(0, b"x") is None
    assert host.find(1, b"y") is None


def test_a_block_is_stored_once_and_only_where_it_fits() -> None:
    host = HostTier(2)
    assert host.store(0, b"x", 1) is not None
    assert host.store(0, b"x", 1) is None
    assert host.store(0, b"y", 3) is None
    assert counts(host) == (1, 1, 0)
    assert HostTier(0).store(0, b"x", 1) is None


def test_the_block_not_found_for_longest_is_pushed_out_first() -> None:
    host = HostTier(2)
    host.store(0, b"a", 1)
    host.store(0, b"b", 1)
    assert host.find(0, b"a") is not None
    host.store(0, b"c", 1)
    assert [host.find(0, name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]


def test_swapped_pages_push_out_prefixes_and_are_never_pushed_out() -> None:
    host = HostTier(3)
    host.store(0, b"a", 2)
    assert host.can_take(3)
    taken = host.take(2)
    assert counts(host) == (1, 0, 2)
    assert host.find(0, b"a") is None
    assert not host.can_take(2)
    assert host.store(0, b"b", 2) is None
    assert host.store(0, b"c", 1) is not None
    host.give_back(taken)
    assert counts(host) == (2, 1, 0)


def test_a_detached_block_is_safe_until_it_is_attached() -> None:
    host = HostTier(2)
    host.store(0, b"a", 1)
    block = host.find(0, b"a")
    assert block is not None
    host.detach(block)
    host.store(0, b"b", 1)
    assert host.store(0, b"c", 1) is not None  # pushes b out, not a
    assert host.find(0, b"a") is None
    host.attach(block)
    assert host.find(0, b"a") is block
    assert host.find(0, b"b") is None


def lose_a_page(host: HostTier) -> str:
    page = host._free_pages.pop()
    return f"host page {page} is nowhere"


def free_a_stored_page(host: HostTier) -> str:
    block = host.find(0, b"a")
    assert block is not None
    host._free_pages.append(block.pages[0])
    return f"host page {block.pages[0]} is in the host's free list and in stored {block}"


def free_a_swapped_page(host: HostTier) -> str:
    host._free_pages.append(5)
    return "host page 5 is in the host's free list and in swapped alice"


def invent_a_page(host: HostTier) -> str:
    host._free_pages.append(6)
    return "host page 6 in the host's free list does not exist"


def miscount(host: HostTier) -> str:
    host.swapped_pages += 1
    return "1 host pages are swapped; kept 2"


@pytest.mark.parametrize("corrupt", [lose_a_page, free_a_stored_page, free_a_swapped_page, invent_a_page, miscount])
def test_the_audit_names(corrupt: object) -> None:
    host = HostTier(5)
    host._free_pages.remove(5)
    host.swapped_pages = 1
    host.store(0, b"a", 2)
    assert host.audit({"alice": [5]}) == []
    assert callable(corrupt)
    wanted = corrupt(host)
    problems = host.audit({"alice": [5]})
    assert wanted in problems, problems


# ---- behind the pool


def test_an_evicted_prefix_comes_back_from_the_host_without_computing() -> None:
    blocks = BlockManager(plan_groups([None]), 3, 4, num_host_pages=3)
    prompt = list(range(12))
    hashes = BlockHashes(4)
    hashes.extend(prompt)
    assert blocks.admit("a", blocks.match_prefix(hashes, 12), 12)
    blocks.commit("a", 12, hashes)
    blocks.free("a")
    assert blocks.admit("b", blocks.match_prefix(BlockHashes(4), 12), 12)
    assert blocks.usage().groups[0].evicted == 3
    assert blocks.host.prefix_pages == 3
    blocks.free("b")
    match = blocks.match_prefix(hashes, 13)
    assert (match.num_tokens, match.miss) == (12, None)
    assert blocks.pages_to_admit(match, 12, 12) == 3
    assert blocks.admit("c", match, 12)
    assert [transfer.kind for transfer in blocks.take_transfers()] == [TransferKind.OUT, TransferKind.IN]
    assert blocks.match_prefix(hashes, 13).num_tokens == 12
    assert blocks.sequence_usage("c").held_pages == 3
    assert blocks.audit() == []
    blocks.free("c")
    assert blocks.usage().cached == 3


def test_without_host_pages_an_eviction_moves_nothing() -> None:
    blocks = BlockManager(plan_groups([None]), 1, 4)
    hashes = BlockHashes(4)
    hashes.extend([1, 2, 3, 4])
    assert blocks.admit("a", blocks.match_prefix(hashes, 4), 4)
    blocks.commit("a", 4, hashes)
    blocks.free("a")
    assert blocks.admit("b", blocks.match_prefix(BlockHashes(4), 4), 4)
    assert blocks.usage().groups[0].evicted == 1
    assert blocks.take_transfers() == ()
