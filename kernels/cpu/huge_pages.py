"""Huge pages: memory that is read over and over in 2 MiB pages, so that its addresses are translated without a search.

For weights and KV pages. Not for what a step allocates: the system clears every page that it gives, all 2 MiB of it.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path

import torch

HUGE_PAGE = 2 << 20
CACHE_LINE = 64
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux has it
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS = Path("/proc/self/smaps")
_BOUNDS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
_IN_HUGE_PAGES = ("AnonHugePages:", "FilePmdMapped:", "ShmemPmdMapped:")


def use_huge_pages(tensor: torch.Tensor) -> bool:
    """Ask for huge pages under a contiguous CPU ``tensor`` that nobody has written to yet; whether the system agrees.

    Its memory stays untouched. Where it is less than a huge page, or there are none, nothing changes.
    """
    start = -(-tensor.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    size = (tensor.data_ptr() + tensor.nbytes - start) // HUGE_PAGE * HUGE_PAGE
    if sys.platform != "linux" or _ADVICE is None or not tensor.is_cpu or size <= 0:
        return False
    library = ctypes.CDLL(None)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(library.madvise(start, size, _ADVICE) == 0)


def has_huge_pages() -> bool:
    """Whether the system gives huge pages to those who ask for them."""
    try:
        return "[never]" not in _SETTING.read_text()
    except OSError:
        return False


def bytes_in_huge_pages(tensor: torch.Tensor) -> int:
    """How much is in huge pages of the mapping in which ``tensor`` begins; 0 where nobody tells."""
    total, holds = 0, False
    try:
        lines = _MAPPINGS.read_text(errors="replace").splitlines()  # names of files are any bytes
    except OSError:
        return 0
    for line in lines:
        if bounds := _BOUNDS.match(line):
            holds = int(bounds[1], 16) <= tensor.data_ptr() < int(bounds[2], 16)
        elif holds and line.startswith(_IN_HUGE_PAGES):
            total += int(line.split()[1]) * 1024
    return total


class HugePageArena:
    """Memory for tensors that live as long as each other, so that small ones share huge pages.

    A tensor goes where it fits first. Each piece keeps the memory that it was cut from.
    """

    CHUNK = 16 * HUGE_PAGE

    def __init__(self) -> None:
        self._rests: list[torch.Tensor] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """Uint8 [nbytes], not initialised, from a cache line on."""
        padded = -(-nbytes // CACHE_LINE) * CACHE_LINE
        place = next((place for place, rest in enumerate(self._rests) if padded <= len(rest)), len(self._rests))
        if place == len(self._rests):
            chunk = torch.empty(max(padded, self.CHUNK) + CACHE_LINE, dtype=torch.uint8)
            use_huge_pages(chunk)
            self._rests.append(chunk[-chunk.data_ptr() % CACHE_LINE :])
        rest = self._rests[place]
        self._rests[place] = rest[padded:]
        return rest[:nbytes]
