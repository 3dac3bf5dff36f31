"""The free queue: oldest first, and O(1) removal from anywhere."""

from __future__ import annotations

import pytest

from block_manager.block import KVBlock
from block_manager.free_queue import FreeQueue


def queue_of(count: int) -> tuple[FreeQueue, list[KVBlock]]:
    queue, blocks = FreeQueue(), [KVBlock(0, (page,)) for page in range(1, count + 1)]
    for block in blocks:
        queue.append(block)
    return queue, blocks


def test_blocks_leave_oldest_first() -> None:
    queue, blocks = queue_of(4)
    assert [queue.pop_oldest() for _ in range(4)] == blocks
    assert len(queue) == 0


@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_a_block_can_leave_from_any_place(position: int) -> None:
    queue, blocks = queue_of(4)
    queue.remove(blocks[position])
    rest = blocks[:position] + blocks[position + 1 :]
    assert list(queue) == rest
    assert len(queue) == 3
    assert [queue.pop_oldest() for _ in range(3)] == rest


def test_a_block_that_returns_is_the_newest() -> None:
    queue, (first, second, third) = queue_of(3)
    queue.remove(first)
    queue.append(first)
    assert list(queue) == [second, third, first]


def test_a_block_cannot_be_queued_twice() -> None:
    queue, blocks = queue_of(2)
    for block in blocks:
        with pytest.raises(ValueError, match="already in the free queue"):
            queue.append(block)
    assert list(queue) == blocks


def test_a_block_that_is_not_queued_cannot_be_removed() -> None:
    queue, blocks = queue_of(2)
    queue.remove(blocks[0])
    for block in (blocks[0], KVBlock(0, (9,))):
        with pytest.raises(ValueError, match="not in the free queue"):
            queue.remove(block)
    assert list(queue) == [blocks[1]]


def test_an_empty_queue_has_no_oldest_block() -> None:
    queue, _ = queue_of(1)
    queue.pop_oldest()
    with pytest.raises(IndexError):
        queue.pop_oldest()
    assert list(queue) == []
