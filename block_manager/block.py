"""KVBlock: `block_size` positions of one layer group, and the pages that hold them."""

from __future__ import annotations

NULL_PAGE = 0
"""Page id that no sequence owns: block tables point there for positions that slid out of a window."""


class KVBlock:
    """A block is held while ``ref_count`` > 0, cached while it is 0 and ``block_hash`` is set, and gone otherwise.

    ``pages`` has one page id per column of the group. ``newer`` and ``older`` link cached blocks into the free queue
    and belong to it alone.
    """

    __slots__ = ("block_hash", "group", "newer", "older", "pages", "ref_count")

    def __init__(self, group: int, pages: tuple[int, ...]) -> None:
        self.group = group
        self.pages = pages
        self.ref_count = 0
        self.block_hash: bytes | None = None
        self.newer: KVBlock | None = None
        self.older: KVBlock | None = None

    def __repr__(self) -> str:
        digest = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVBlock(group={self.group}, pages={self.pages}, ref_count={self.ref_count}, hash={digest})"
