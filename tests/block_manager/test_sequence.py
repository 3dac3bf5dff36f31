"""What a sequence has cost: pages now, pages at peak, and pages times seconds."""

from __future__ import annotations

from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.sequence import SequencePages
from block_manager.usage import SequenceUsage


def test_page_seconds_are_the_area_under_the_pages() -> None:
    sequence = SequencePages("s", 1, (), 0, 0, opened=100.0)
    assert sequence.usage(107.0) == SequenceUsage(0, 0, 0.0)
    sequence.count(2, 110.0)
    sequence.count(3, 114.0)  # 2 pages for 4 seconds
    sequence.count(-4, 116.0)  # 5 for 2
    assert sequence.usage(116.0) == SequenceUsage(1, 5, 18.0)
    assert sequence.usage(126.0) == SequenceUsage(1, 5, 28.0)
    assert sequence.usage(126.0) == SequenceUsage(1, 5, 28.0)


def test_the_manager_counts_growth_windows_forks_and_the_end() -> None:
    now = [0.0]
    blocks = BlockManager(plan_groups([8]), 10, 4, clock=lambda: now[0])
    hashes = BlockHashes(4)
    assert blocks.admit("a", blocks.match_prefix(hashes, 12), 12)
    now[0] = 1.0
    assert blocks.sequence_usage("a") == SequenceUsage(3, 3, 3.0)
    blocks.commit("a", 12, hashes)  # positions 5.. are seen from 12: block 0 goes
    blocks.fork("a", "b")
    now[0] = 2.0
    assert blocks.sequence_usage("a") == SequenceUsage(2, 3, 5.0)
    assert blocks.sequence_usage("b") == SequenceUsage(2, 2, 2.0)
    assert blocks.grow("a", 13)
    now[0] = 4.0
    assert blocks.free("a") == SequenceUsage(0, 3, 11.0)
    assert blocks.free("b") == SequenceUsage(0, 2, 6.0)


def test_a_copy_on_write_changes_no_count() -> None:
    blocks = BlockManager(plan_groups([None]), 10, 4, clock=lambda: 0.0)
    hashes = BlockHashes(4)
    assert blocks.admit("a", blocks.match_prefix(hashes, 2), 2)
    blocks.commit("a", 2, hashes)
    blocks.fork("a", "b")
    assert blocks.grow("b", 3)
    assert blocks.sequence_usage("b") == SequenceUsage(1, 1, 0.0)
    assert blocks.audit() == []
