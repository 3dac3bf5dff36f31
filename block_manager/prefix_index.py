"""PrefixIndex: hash to block, and for a hash that is not there, why.

One map per layer group. Besides it remembers, boundedly, which hashes were evicted and which contents exist under any
salt, so that a miss comes with its reason.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator

from block_manager.block import KVBlock
from block_manager.hashing import content_of


class MissReason(enum.StrEnum):
    """Why a prefix, or the rest of one, was not found."""

    TOO_SHORT = "too_short"  # what is left is not one full block before the last token
    NEVER_SEEN = "never_seen"
    EVICTED = "evicted"
    SALT = "salt"  # the same tokens are there, under another salt or adapter
    DISABLED = "disabled"


class PrefixIndex:
    """Blocks by hash, for ``num_groups`` groups; remembers the last ``memory`` evictions."""

    def __init__(self, num_groups: int, memory: int = 65_536) -> None:
        self._by_hash: list[dict[bytes, KVBlock]] = [{} for _ in range(num_groups)]
        self._contents: dict[bytes, int] = {}  # content -> blocks registered with it, over groups and salts
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        self._memory = memory

    def find(self, group: int, block_hash: bytes) -> KVBlock | None:
        """The block of ``group`` with these tokens, held or cached."""
        return self._by_hash[group].get(block_hash)

    def add(self, block: KVBlock, block_hash: bytes) -> bool:
        """Register ``block``; False when another block of its group has this hash already, or it has one itself."""
        by_hash = self._by_hash[block.group]
        if block.block_hash is not None or block_hash in by_hash:
            return False
        block.block_hash = block_hash
        by_hash[block_hash] = block
        self._evicted.pop(block_hash, None)
        content = content_of(block_hash)
        self._contents[content] = self._contents.get(content, 0) + 1
        return True

    def remove(self, block: KVBlock, *, evicted: bool) -> None:
        """Forget ``block``; ``evicted``: because pages ran out, which a later miss will say."""
        block_hash = block.block_hash
        if block_hash is None:
            return
        del self._by_hash[block.group][block_hash]
        block.block_hash = None
        content = content_of(block_hash)
        left = self._contents[content] - 1
        if left:
            self._contents[content] = left
        else:
            del self._contents[content]
        if evicted:
            self._evicted[block_hash] = None
            if len(self._evicted) > self._memory:
                self._evicted.popitem(last=False)

    def blocks(self) -> Iterator[KVBlock]:
        """Every registered block."""
        for by_hash in self._by_hash:
            yield from by_hash.values()

    def clear(self) -> None:
        """Forget everything."""
        for by_hash in self._by_hash:
            for block in by_hash.values():
                block.block_hash = None
            by_hash.clear()
        self._contents.clear()
        self._evicted.clear()

    def why_missing(self, block_hash: bytes) -> MissReason:
        """Why the block with this hash was not there to be shared."""
        if block_hash in self._evicted:
            return MissReason.EVICTED
        in_own_namespace = any(block_hash in by_hash for by_hash in self._by_hash)
        if not in_own_namespace and content_of(block_hash) in self._contents:
            return MissReason.SALT
        return MissReason.EVICTED if in_own_namespace else MissReason.NEVER_SEEN

    def audit(self, known: set[KVBlock]) -> list[str]:
        """A block has a hash exactly where that hash finds it, and only ``known`` (held or cached) blocks are found."""
        problems = []
        for group, by_hash in enumerate(self._by_hash):
            for block_hash, block in by_hash.items():
                if block.block_hash != block_hash or block.group != group:
                    problems.append(f"{block} is registered under another hash or group")
                elif block not in known:
                    problems.append(f"{block} is registered, but neither cached nor in a table")
        for block in known:
            if block.block_hash is not None and self.find(block.group, block.block_hash) is not block:
                problems.append(f"{block} cannot be found by its hash")
        return problems
