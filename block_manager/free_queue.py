"""FreeQueue: blocks nobody holds but whose contents may serve again, oldest first.

An intrusive doubly linked list, so that a prefix hit takes a block out of the middle in O(1). Invariant: a block is
linked exactly when its ref_count is 0 and it has a hash.
"""

from __future__ import annotations

from collections.abc import Iterator

from block_manager.block import KVBlock


class FreeQueue:
    """LRU order: `append` at the young end, `pop_oldest` from the other."""

    def __init__(self) -> None:
        self._end = KVBlock(-1, ())  # sentinel: _end.newer is the oldest block, _end.older the newest
        self._end.newer = self._end.older = self._end
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[KVBlock]:
        block = self._end.newer
        while block is not None and block is not self._end:
            yield block
            block = block.newer

    def append(self, block: KVBlock) -> None:
        """Make ``block`` the last to be evicted."""
        if block.newer is not None:
            raise ValueError(f"{block} is already in the free queue")
        newest = self._end.older
        assert newest is not None
        block.older, block.newer = newest, self._end
        newest.newer = self._end.older = block
        self._length += 1

    def remove(self, block: KVBlock) -> None:
        """Take ``block`` out, wherever it is."""
        if block.newer is None or block.older is None:
            raise ValueError(f"{block} is not in the free queue")
        block.older.newer, block.newer.older = block.newer, block.older
        block.newer = block.older = None
        self._length -= 1

    def pop_oldest(self) -> KVBlock:
        """Take out the block unused for longest; raises IndexError when there is none."""
        oldest = self._end.newer
        if oldest is None or oldest is self._end:
            raise IndexError("the free queue is empty")
        self.remove(oldest)
        return oldest
