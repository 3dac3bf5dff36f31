"""The prefix index: found or not, and if not, why."""

from __future__ import annotations

import pytest

from block_manager.block import KVBlock
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.prefix_index import MissReason, PrefixIndex


def chain(*token_ids: int, salt: str = "", adapter: str = "") -> BlockHashes:
    hashes = BlockHashes(2, salt, adapter)
    hashes.extend(token_ids)
    return hashes


def added(index: PrefixIndex, block_hash: bytes, group: int = 0) -> KVBlock:
    block = KVBlock(group, (1,))
    assert index.add(block, block_hash)
    return block


def test_what_was_never_added_was_never_seen() -> None:
    index = PrefixIndex(1)
    added(index, chain(1, 1)[0])
    assert index.why_missing(chain(2, 2)[0]) is MissReason.NEVER_SEEN


def test_what_pages_ran_out_for_was_evicted_until_it_is_back() -> None:
    index = PrefixIndex(1)
    name = chain(1, 1)[0]
    index.remove(added(index, name), evicted=True)
    assert index.find(0, name) is None
    assert index.why_missing(name) is MissReason.EVICTED
    index.remove(added(index, name), evicted=False)
    assert index.why_missing(name) is MissReason.NEVER_SEEN


def test_evictions_are_remembered_up_to_a_bound_oldest_forgotten_first() -> None:
    index = PrefixIndex(1, memory=2)
    names = [chain(token, token)[0] for token in range(3)]
    for name in names:
        index.remove(added(index, name), evicted=True)
    assert [index.why_missing(name) for name in names] == [MissReason.NEVER_SEEN, *[MissReason.EVICTED] * 2]


@pytest.mark.parametrize("other", [{"salt": "b"}, {"adapter": "b"}, {}])
def test_the_same_tokens_under_another_salt_or_adapter_are_a_miss_because_of_it(other: dict[str, str]) -> None:
    index = PrefixIndex(1)
    block = added(index, chain(1, 1, salt="a")[0])
    assert index.why_missing(chain(1, 1, **other)[0]) is MissReason.SALT
    index.remove(block, evicted=False)
    assert index.why_missing(chain(1, 1, **other)[0]) is MissReason.NEVER_SEEN


def test_two_salts_of_one_content_are_counted() -> None:
    index = PrefixIndex(1)
    first = added(index, chain(1, 1, salt="a")[0])
    added(index, chain(1, 1, salt="b")[0])
    index.remove(first, evicted=False)
    assert index.why_missing(chain(1, 1)[0]) is MissReason.SALT


def test_a_group_that_lost_what_another_still_has_evicted_it() -> None:
    index = PrefixIndex(2)
    name = chain(1, 1)[0]
    added(index, name, group=1)
    assert index.find(0, name) is None
    assert index.why_missing(name) is MissReason.EVICTED


def test_a_second_block_with_a_hash_or_a_second_hash_for_a_block_is_refused() -> None:
    index = PrefixIndex(1)
    name = chain(1, 1)[0]
    block = added(index, name)
    assert not index.add(KVBlock(0, (2,)), name)
    assert not index.add(block, chain(2, 2)[0])
    assert index.find(0, name) is block


def test_clearing_forgets_blocks_contents_and_evictions() -> None:
    index = PrefixIndex(1)
    first, second = chain(1, 1)[0], chain(2, 2)[0]
    index.remove(added(index, first), evicted=True)
    block = added(index, second)
    index.clear()
    assert block.block_hash is None
    assert list(index.blocks()) == []
    for name in (first, second, chain(2, 2, salt="a")[0]):
        assert index.why_missing(name) is MissReason.NEVER_SEEN


# ---- through the manager


def miss(blocks: BlockManager, *token_ids: int, salt: str = "") -> MissReason | None:
    return blocks.match_prefix(chain(*token_ids, salt=salt), len(token_ids)).miss


def test_a_match_says_why_it_ends_where_it_does() -> None:
    blocks = BlockManager(plan_groups([None]), 3, 2)
    hashes = chain(1, 1, 2, 2)
    assert miss(blocks, 1) is MissReason.TOO_SHORT
    assert miss(blocks, 1, 1) is MissReason.TOO_SHORT  # the last token is always computed
    assert miss(blocks, 1, 1, 2) is MissReason.NEVER_SEEN
    assert blocks.admit("s", blocks.match_prefix(hashes, 4), 4)
    blocks.commit("s", 4, hashes)
    assert miss(blocks, 1, 1, 2, 2, 3) is None
    assert miss(blocks, 1, 1, 3, 3, 3) is MissReason.NEVER_SEEN
    assert miss(blocks, 1, 1, 2, salt="a") is MissReason.SALT
    blocks.free("s")
    assert blocks.admit("other", blocks.match_prefix(chain(), 4), 4)  # takes the free page, and the tail of s
    assert miss(blocks, 1, 1, 2, 2, 3) is MissReason.EVICTED
    assert miss(blocks, 1, 1, 2) is None


def test_a_manager_without_prefix_cache_says_so() -> None:
    blocks = BlockManager(plan_groups([None]), 3, 2, enable_prefix_caching=False)
    assert miss(blocks, 1, 1, 2, 2, 3) is MissReason.DISABLED
