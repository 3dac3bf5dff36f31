"""PrefixMatch: the cached blocks with which a new sequence can begin, and why there are not more of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from block_manager.block import KVBlock
from block_manager.groups import LayerGroup
from block_manager.hashing import BlockHashes
from block_manager.host_tier import HostBlock
from block_manager.prefix_index import MissReason, PrefixIndex

Find = Callable[[int, bytes], KVBlock | HostBlock | None]  # group, hash


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Cached blocks that a new sequence can share: its first ``num_tokens`` tokens need no computing.

    ``blocks[g]`` maps block index to block for group g; windowed groups list only what the window still needs.
    ``miss`` says why it is not longer; None where it is as long as can be.
    """

    num_tokens: int
    blocks: tuple[dict[int, KVBlock | HostBlock], ...]
    miss: MissReason | None = None


def match_prefix(
    groups: Sequence[LayerGroup],
    block_size: int,
    find: Find,
    index: PrefixIndex,
    hashes: BlockHashes,
    num_tokens: int,
) -> PrefixMatch:
    """The longest prefix of whole blocks, at most ``num_tokens - 1`` tokens, that every group still has.

    The last token is always computed anew, for its logits. A full group needs all blocks of the prefix; a windowed one
    only those that the next position can still see.
    """
    longest = min(len(hashes), (num_tokens - 1) // block_size)
    if not longest:
        return PrefixMatch(0, tuple({} for _ in groups), MissReason.TOO_SHORT)
    length, shrunk = longest, True
    while shrunk and length:
        shrunk = False
        for number, group in enumerate(groups):
            usable = _longest_hit(number, group, block_size, find, hashes, length)
            if usable < length:
                length, shrunk = usable, True
    miss = None if length == longest else index.why_missing(hashes[length])
    found = []
    for number, group in enumerate(groups):
        first = group.first_needed_block(length * block_size, block_size)
        blocks = {i: find(number, hashes[i]) for i in range(first, length)}
        found.append({i: block for i, block in blocks.items() if block is not None})
    return PrefixMatch(length * block_size, tuple(found), miss)


def _longest_hit(number: int, group: LayerGroup, block_size: int, find: Find, hashes: BlockHashes, limit: int) -> int:
    """Most blocks, at most ``limit``, after which the group has every block that is still needed."""
    if group.window is None:
        return next((i for i in range(limit) if find(number, hashes[i]) is None), limit)
    end = limit
    for i in range(limit - 1, -1, -1):
        if find(number, hashes[i]) is None:
            end = i
        elif i <= group.first_needed_block(end * block_size, block_size):
            return end
    return end
