"""KVBlock: `block_size` positions of one layer group, and the pages that hold them."""

from __future__ import annotations

NULL_PAGE = 0
"""Page id that no sequence owns: block tables point there for positions that slid out of a window."""


class KVBlock:
    """A block is held while it has holders, cached while it has none but a hash, and gone otherwise.

    ``pages`` has one page id per column of the group. ``holders`` are the handles of the sequences whose tables point
    here. ``newer`` and ``older`` link cached blocks into the free queue and belong to it alone; ``last_used`` is when
    the last holder let go.
    """

    __slots__ = ("block_hash", "group", "holders", "last_used", "newer", "older", "pages")

    def __init__(self, group: int, pages: tuple[int, ...]) -> None:
        self.group = group
        self.pages = pages
        self.holders: set[int] = set()
        self.block_hash: bytes | None = None
        self.last_used = 0.0
        self.newer: KVBlock | None = None
        self.older: KVBlock | None = None

    @property
    def ref_count(self) -> int:
        """Tables that point here."""
        return len(self.holders)

    def __repr__(self) -> str:
        digest = self.block_hash.hex()[-8:] if self.block_hash else None
        return f"KVBlock(group={self.group}, pages={self.pages}, ref_count={self.ref_count}, hash={digest})"
