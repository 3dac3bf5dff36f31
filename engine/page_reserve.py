"""PageReserve: has the system give memory to the pages that are taken next, before a step needs them.

The page tensors of a CPU are reserved, not touched. Whoever writes to a page first waits until the system has found
and cleared memory for it, with huge pages 2 MiB at once; in a virtual machine that takes long. So an engine that has
nothing to do touches a bounded number of pages ahead of use.

Knows page numbers and their tensors, nothing of sequences. Invariant: only pages with nothing in them are written to.
"""

from __future__ import annotations

from block_manager.block_pool import BlockPool
from block_manager.kv_cache import KVCache

RESERVE_BYTES = 128 << 20  # about 7,000 tokens of Gemma 3 270M
PORTION_BYTES = 2 << 20  # what a request that comes meanwhile may have to wait for


class PageReserve:
    """Of the pages of ``cache`` that ``pool`` hands out; ``num_bytes`` of them are kept ready."""

    def __init__(self, pool: BlockPool, cache: KVCache, num_bytes: int = RESERVE_BYTES) -> None:
        self._pool = pool
        self._cache = cache
        self._num_pages = num_bytes // cache.page_bytes
        self._portion = max(1, PORTION_BYTES // cache.page_bytes)
        self._last_touched = 0  # pages up to this one were touched or taken before: a fresh one is the lowest there is

    @property
    def due(self) -> float | None:
        """None once all pages that should be ready are."""
        return 0.0 if self._missing() else None

    def advance(self) -> bool:
        """Make a few more pages ready, between two steps; whether there was any to make ready."""
        pages = self._missing()[: self._portion]
        if pages:
            self._cache.touch(pages)
            self._last_touched = max(pages)
        return bool(pages)

    def _missing(self) -> list[int]:
        return [page for page in self._pool.next_pages(self._num_pages) if page > self._last_touched]
