"""BlockTable: the blocks of one sequence in one layer group, by absolute block index.

    index       0       1       2       3       4
    blocks      None    None    block   block   block
    pages       (0,)    (0,)    (7,)    (2,)    (9,)        what the kernels' tables show
                                ^ first_held

Invariant: entries before ``first_held`` are null, all others are held; ``pages`` says the same as ``blocks``, and
``page_ids`` the same in one flat array, which is cheap to copy. It only keeps order: taking and giving back blocks is
the manager's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from block_manager.block import NULL_PAGE, KVBlock


class ChangedBlocks(NamedTuple):
    """Per group, the page ids of each block from block ``first`` on; no groups where nothing changed."""

    first: int
    pages: tuple[list[tuple[int, ...]], ...]


NO_CHANGE = ChangedBlocks(0, ())


class BlockTable:
    """Starts empty; ``null_pages`` is the entry of a block that slid out of the window."""

    __slots__ = ("_null_pages", "blocks", "first_held", "page_ids", "pages")

    def __init__(self, pages_per_block: int) -> None:
        self._null_pages = (NULL_PAGE,) * pages_per_block
        self.blocks: list[KVBlock | None] = []
        self.pages: list[tuple[int, ...]] = []
        self.page_ids = array("I")
        self.first_held = 0

    def __len__(self) -> int:
        return len(self.blocks)

    def held(self) -> Iterator[KVBlock]:
        """The blocks it points at, first to last."""
        for index in range(self.first_held, len(self.blocks)):
            block = self.blocks[index]
            assert block is not None
            yield block

    def append_null(self, count: int) -> None:
        """Blocks that a prefix hit need not have, before any that are held."""
        self.blocks.extend([None] * count)
        self.pages.extend([self._null_pages] * count)
        self.page_ids.extend(self._null_pages * count)
        self.first_held = len(self.blocks)

    def append(self, block: KVBlock) -> None:
        self.blocks.append(block)
        self.pages.append(block.pages)
        self.page_ids.extend(block.pages)

    def replace(self, index: int, block: KVBlock) -> None:
        """Put a copy in the place of a block."""
        self.blocks[index] = block
        self._show(index, block.pages)

    def drop_before(self, index: int) -> list[KVBlock]:
        """Null all entries before ``index``; returns the blocks that were there, first to last."""
        dropped = []
        for i in range(self.first_held, min(index, len(self.blocks))):
            block = self.blocks[i]
            assert block is not None
            dropped.append(block)
            self.blocks[i] = None
            self._show(i, self._null_pages)
        self.first_held = max(self.first_held, min(index, len(self.blocks)))
        return dropped

    def drop_from(self, index: int) -> list[KVBlock]:
        """Cut the table to ``index`` entries; returns the blocks that were behind it, last to first."""
        dropped = [block for block in self.blocks[max(index, self.first_held) :] if block is not None]
        del self.blocks[index:], self.pages[index:], self.page_ids[index * len(self._null_pages) :]
        self.first_held = min(self.first_held, len(self.blocks))
        return dropped[::-1]

    def _show(self, index: int, pages: tuple[int, ...]) -> None:
        self.pages[index] = pages
        start = index * len(pages)
        for column, page in enumerate(pages):
            self.page_ids[start + column] = page

    def problems(self, where: str) -> list[str]:
        """Breaches of the invariant, in words."""
        found = []
        for index, block in enumerate(self.blocks):
            pages = self._null_pages if block is None else block.pages
            if self.pages[index] != pages:
                found.append(f"{where} block {index} shows pages {self.pages[index]} and holds {pages}")
            if (block is None) != (index < self.first_held):
                found.append(f"{where} block {index} is {block}, but the first held is {self.first_held}")
        if self.page_ids != array("I", chain.from_iterable(self.pages)):
            found.append(f"{where} shows pages that are not its page ids")
        return found
