"""Sizing: from bytes to pages, and from tokens to pages, before anything is allocated.

`Capacity` is the arithmetic that admission, the never-fits answer at the door and the start-up table share, so that
none of them can disagree with the allocator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from block_manager.groups import LayerGroup, layers_per_page


def page_bytes(
    groups: Sequence[LayerGroup],
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    element_bytes: int,
    scale_bytes: int = 0,
) -> int:
    """Bytes of one page: keys and values of ``block_size`` positions in ``layers_per_page`` layers.

    A row is one key or value of one position and KV head; ``scale_bytes`` is what it takes beside its elements.
    """
    rows = 2 * layers_per_page(groups) * block_size * num_kv_heads
    return rows * (head_dim * element_bytes + scale_bytes)


def row_scale_bytes(element_bytes: int) -> int:
    """Bytes of scale beside each key and value row: a float32 for elements of one byte, which are quantised."""
    return 4 if element_bytes == 1 else 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many tokens a pool of ``num_pages`` pages can hold.

    ``max_chunk`` is the most tokens that one step computes for one sequence (the scheduler's token budget);
    ``max_rollback`` tokens more than a window needs are kept.
    """

    groups: tuple[LayerGroup, ...]
    block_size: int
    num_pages: int
    max_chunk: int
    max_rollback: int = 0

    def peak_pages(self, num_tokens: int, chunk: int) -> int:
        """Most pages a lone sequence holds while it grows to ``num_tokens``, ``chunk`` tokens a step at most."""
        span = chunk + self.max_rollback
        return sum(group.max_blocks(num_tokens, span, self.block_size) * group.pages_per_block for group in self.groups)

    def largest_chunk(self, num_tokens: int) -> int:
        """Most tokens a step may compute for a lone sequence that grows to ``num_tokens``; 0: it never fits."""
        if self.peak_pages(num_tokens, self.max_chunk) <= self.num_pages:
            return self.max_chunk
        fits, fails = 0, self.max_chunk
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.peak_pages(num_tokens, middle) <= self.num_pages:
                fits = middle
            else:
                fails = middle
        return fits

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence can ever grow to ``num_tokens``, alone in the pool."""
        return self.peak_pages(num_tokens, 1) <= self.num_pages

    def max_tokens(self, limit: int) -> int:
        """The longest sequence, at most ``limit`` tokens, that fits alone."""
        if self.fits(limit):
            return limit
        fits, fails = 0, limit
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.fits(middle):
                fits = middle
            else:
                fails = middle
        return fits
