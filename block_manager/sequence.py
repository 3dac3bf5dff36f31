"""SequencePages: what the manager keeps of one open sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from block_manager.block_table import BlockTable
from block_manager.usage import SequenceUsage


@dataclass(slots=True)
class SequencePages:
    """Tables, one per group, and how far they are written.

    ``handle`` stands for the sequence in blocks' holder sets. Positions below ``num_tokens`` are written; blocks below
    ``num_hashed`` were offered to the prefix index. Positions below ``writable`` have blocks that nobody else sees; a
    commit of fewer than ``next_commit`` tokens changes nothing but ``num_tokens``. Blocks from ``changed_from`` on are
    new, or were replaced, since somebody last asked for changes.
    """

    sequence_id: str
    handle: int
    tables: tuple[BlockTable, ...]
    num_tokens: int
    num_hashed: int
    opened: float
    writable: int = 0
    next_commit: int = 0
    changed_from: int = 0
    held_pages: int = 0
    peak_pages: int = 0
    _page_seconds: float = 0.0
    _counted: float = field(default=0.0)

    def __post_init__(self) -> None:
        self._counted = self.opened

    def count(self, pages: int, now: float) -> None:
        """It took (or, negative, gave back) ``pages`` pages at time ``now``."""
        self._page_seconds += self.held_pages * (now - self._counted)
        self._counted = now
        self.held_pages += pages
        self.peak_pages = max(self.peak_pages, self.held_pages)

    def usage(self, now: float) -> SequenceUsage:
        """Its share of the ledger at time ``now``."""
        pending = self.held_pages * (now - self._counted)
        return SequenceUsage(self.held_pages, self.peak_pages, self._page_seconds + pending)
