"""Swapping: a sequence's blocks to host pages and back, as transfers for the runner to carry out.

`BlockManager` offers these as methods. A swapped sequence holds no device page. Blocks it shared become its own when it
comes back; it keeps its place in positions, so that nothing is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from block_manager.block_pool import BlockPool
from block_manager.host_tier import HostTier
from block_manager.sequence import SequencePages
from block_manager.transfers import Transfer, TransferKind


@dataclass(frozen=True, slots=True)
class SwappedTable:
    """One group's table: ``first_held`` null entries, then the host pages of each block."""

    first_held: int
    blocks: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return self.first_held + len(self.blocks)


@dataclass(frozen=True, slots=True)
class SwappedSequence:
    """All that is kept of a sequence on the host."""

    num_tokens: int
    tables: tuple[SwappedTable, ...]

    @property
    def pages(self) -> list[int]:
        return [page for table in self.tables for block in table.blocks for page in block]

    @property
    def device_pages(self) -> int:
        """Device pages it takes to come back."""
        return len(self.pages)


def swap_out(host: HostTier, sequence: SequencePages, transfers: list[Transfer]) -> SwappedSequence | None:
    """Host pages for every block of ``sequence``; None when the host has not enough."""
    written = [list(table.held()) for table in sequence.tables]
    if not host.can_take(sum(len(block.pages) for blocks in written for block in blocks)):
        return None
    tables = []
    for table, blocks in zip(sequence.tables, written, strict=True):
        copies = []
        for block in blocks:
            pages = host.take(len(block.pages))
            transfers.append(Transfer(TransferKind.OUT, block.pages, pages))
            copies.append(pages)
        tables.append(SwappedTable(table.first_held, tuple(copies)))
    return SwappedSequence(sequence.num_tokens, tuple(tables))


def swap_in(
    host: HostTier,
    pool: BlockPool,
    swapped: SwappedSequence,
    sequence: SequencePages,
    transfers: list[Transfer],
    now: float,
) -> None:
    """Fill the empty tables of ``sequence`` again; the pool must have ``swapped.device_pages`` available.

    Each page's transfer is listed before its host page may be reused: allocating can evict to the host.
    """
    for group, (saved, table) in enumerate(zip(swapped.tables, sequence.tables, strict=True)):
        table.append_null(saved.first_held)
        for pages in saved.blocks:
            block = pool.allocate(group, len(pages), sequence.handle)
            transfers.append(Transfer(TransferKind.IN, pages, block.pages))
            table.append(block)
            sequence.count(len(pages), now)
            host.give_back(pages)
