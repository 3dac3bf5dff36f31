"""HostTier: pages in host memory, behind the device's pool.

Two uses share its pages: contents of cached blocks that were evicted from the device, found again by hash, and the
blocks of sequences that were swapped out. The second use may push out the first, never the other way round.

Invariant: free + stored prefixes + swapped = num_pages. It knows page ids and hashes; the copying is the runner's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostBlock:
    """An evicted block whose contents are in host pages."""

    group: int
    block_hash: bytes
    pages: tuple[int, ...]


class HostTier:
    """Host pages 1 .. ``num_pages``; none at all where ``num_pages`` is 0."""

    def __init__(self, num_pages: int = 0) -> None:
        self.num_pages = num_pages
        self.swapped_pages = 0
        self._free_pages = list(range(num_pages, 0, -1))
        self._prefixes: OrderedDict[tuple[int, bytes], HostBlock] = OrderedDict()  # oldest first

    @property
    def free_pages(self) -> int:
        return len(self._free_pages)

    @property
    def prefix_pages(self) -> int:
        """Pages with contents of evicted blocks."""
        return self.num_pages - self.swapped_pages - len(self._free_pages)

    def find(self, group: int, block_hash: bytes) -> HostBlock | None:
        """The stored block with these tokens; being found makes it the youngest."""
        block = self._prefixes.get((group, block_hash))
        if block is not None:
            self._prefixes.move_to_end((group, block_hash))
        return block

    def store(self, group: int, block_hash: bytes, num_pages: int) -> tuple[int, ...] | None:
        """Host pages for an evicted block's contents, pushing older ones out; None when it is there, or cannot be."""
        if (group, block_hash) in self._prefixes or not self._make_room(num_pages):
            return None
        block = HostBlock(group, block_hash, tuple(self._free_pages.pop() for _ in range(num_pages)))
        self._prefixes[group, block_hash] = block
        return block.pages

    def detach(self, block: HostBlock) -> None:
        """Keep the pages of a found block from being pushed out while they are read, until `attach`."""
        del self._prefixes[block.group, block.block_hash]
        self.swapped_pages += len(block.pages)

    def attach(self, block: HostBlock) -> None:
        """Let a detached block be found, and pushed out, again."""
        self._prefixes[block.group, block.block_hash] = block
        self.swapped_pages -= len(block.pages)

    def drop_prefixes(self) -> None:
        """Forget every stored prefix."""
        while self._prefixes:
            _, block = self._prefixes.popitem()
            self._free_pages.extend(block.pages)

    def take(self, num_pages: int) -> tuple[int, ...]:
        """Pages for swapped blocks; call `can_take` first."""
        self._make_room(num_pages)
        self.swapped_pages += num_pages
        return tuple(self._free_pages.pop() for _ in range(num_pages))

    def can_take(self, num_pages: int) -> bool:
        """Whether ``num_pages`` more pages can be swapped out."""
        return num_pages <= self.num_pages - self.swapped_pages

    def give_back(self, pages: tuple[int, ...]) -> None:
        """Swapped pages are no longer needed."""
        self.swapped_pages -= len(pages)
        self._free_pages.extend(pages)

    def _make_room(self, num_pages: int) -> bool:
        if not self.can_take(num_pages):
            return False
        while len(self._free_pages) < num_pages:
            _, oldest = self._prefixes.popitem(last=False)
            self._free_pages.extend(oldest.pages)
        return True

    def audit(self, swapped: dict[str, list[int]]) -> list[str]:
        """Account for every host page, given the pages of swapped sequences; returns what is wrong."""
        places: dict[int, str] = {}
        problems: list[str] = []
        claims = [("the host's free list", self._free_pages)]
        claims += [(f"stored {block}", list(block.pages)) for block in self._prefixes.values()]
        claims += [(f"swapped {name}", pages) for name, pages in swapped.items()]
        for where, pages in claims:
            for page in pages:
                if not 1 <= page <= self.num_pages:
                    problems.append(f"host page {page} in {where} does not exist")
                elif page in places:
                    problems.append(f"host page {page} is in {places[page]} and in {where}")
                else:
                    places[page] = where
        problems += [f"host page {page} is nowhere" for page in range(1, self.num_pages + 1) if page not in places]
        counted = sum(map(len, swapped.values()))
        if counted != self.swapped_pages:
            problems.append(f"{counted} host pages are swapped; kept {self.swapped_pages}")
        return problems
