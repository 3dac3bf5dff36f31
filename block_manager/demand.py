"""Demand: how many pages a sequence would take from the pool, before it takes any.

`BlockManager` offers these as methods. Windowed groups return pages while they grow, so that what a sequence takes on
its way is bounded by a window and a chunk, not by its length; blocks that others hold too return nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from block_manager.block import KVBlock
from block_manager.block_table import BlockTable
from block_manager.groups import LayerGroup
from block_manager.host_tier import HostBlock
from block_manager.sequence import SequencePages
from block_manager.swap import SwappedSequence


def pages_to_admit(
    groups: Sequence[LayerGroup],
    block_size: int,
    num_matched_tokens: int,
    matched: Sequence[Mapping[int, KVBlock | HostBlock]],
    num_tokens: int,
    span: int,
) -> int:
    """Available pages that a new sequence takes to reach ``num_tokens``: fresh ones, and hits nobody holds now.

    ``span`` tokens at most are computed in one step, or kept for a rollback.
    """
    pages = 0
    for group, blocks in zip(groups, matched, strict=True):
        first = group.first_needed_block(num_matched_tokens, block_size)
        shared = sum(1 for block in blocks.values() if isinstance(block, KVBlock) and block.holders)
        to_take = -(-num_tokens // block_size) - first - shared
        # shared blocks slide out of a window too, so they do not lessen the most it holds later
        pages += min(to_take, group.max_blocks(num_tokens, span, block_size)) * group.pages_per_block
    return pages


def pages_to_reach(groups: Sequence[LayerGroup], block_size: int, sequence: SequencePages, num_tokens: int) -> int:
    """Pages that ``sequence`` takes before it can compute positions below ``num_tokens`` at once, copies included."""
    blocks = -(-num_tokens // block_size)
    pages = 0
    for group, table in zip(groups, sequence.tables, strict=True):
        copied = num_tokens > sequence.num_tokens and is_written_by_others(block_size, sequence, table)
        pages += (max(0, blocks - len(table)) + copied) * group.pages_per_block
    return pages


def pages_to_grow(
    groups: Sequence[LayerGroup], block_size: int, sequence: SequencePages, num_tokens: int, span: int
) -> int:
    """Most pages that ``sequence`` takes on its way to ``num_tokens``, step by step, windows moving on as it goes."""
    blocks = -(-num_tokens // block_size)
    pages = 0
    for group, table in zip(groups, sequence.tables, strict=True):
        if group.window is None:
            wanted = blocks - len(table)
        else:
            most = group.max_blocks(num_tokens, span, block_size)
            wanted = min(blocks - len(table), most - sum(1 for block in table.held() if len(block.holders) == 1))
        copied = num_tokens > sequence.num_tokens and is_written_by_others(block_size, sequence, table)
        pages += (max(0, wanted) + copied) * group.pages_per_block
    return pages


def pages_to_swap_in(
    groups: Sequence[LayerGroup], block_size: int, swapped: SwappedSequence, num_tokens: int, span: int
) -> int:
    """Most pages that a swapped sequence holds while it comes back and grows to ``num_tokens``.

    Like `pages_to_admit`, no more than a window and a span for windowed groups: what the never-fits proof allows must
    never be asked for in vain.
    """
    total = -(-num_tokens // block_size)
    pages = 0
    for group, table in zip(groups, swapped.tables, strict=True):
        blocks = len(table.blocks) + max(0, total - len(table))
        pages += min(blocks, group.max_blocks(num_tokens, span, block_size)) * group.pages_per_block
    return pages


def is_written_by_others(block_size: int, sequence: SequencePages, table: BlockTable) -> bool:
    """Whether the partly filled last block must be copied before ``sequence`` writes on."""
    index, offset = divmod(sequence.num_tokens, block_size)
    if not offset or index >= len(table):
        return False
    block = table.blocks[index]
    return block is not None and len(block.holders) > 1
