"""Huge pages are asked for under whole 2 MiB of untouched memory, and change nothing that is stored there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernels.cpu.huge_pages import CACHE_LINE, HUGE_PAGE, HugePageArena, use_huge_pages

SMAPS = Path("/proc/self/smaps")


def flags_at(address: int) -> list[str]:
    """What the kernel was told about the mapping that holds ``address``: "hg" is a wish for huge pages."""
    holds = False
    for line in SMAPS.read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            holds = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif holds and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells")
def test_the_middle_of_large_memory_gets_huge_pages() -> None:
    tensor = torch.empty(4 * HUGE_PAGE, dtype=torch.uint8)
    if not use_huge_pages(tensor):
        pytest.skip("this kernel has none")
    assert "hg" in flags_at(tensor.data_ptr() + 2 * HUGE_PAGE)
    tensor.fill_(7)
    assert int(tensor.sum(dtype=torch.int64)) == 7 * 4 * HUGE_PAGE


@pytest.mark.parametrize("size", [0, 1, HUGE_PAGE - 1])
def test_small_memory_is_left_alone(size: int) -> None:
    assert not use_huge_pages(torch.zeros(size, dtype=torch.uint8))


def test_pieces_of_an_arena_are_apart_and_begin_at_cache_lines() -> None:
    arena = HugePageArena()
    sizes = [1, 64, 65, 5 * HUGE_PAGE, 0, 12 * HUGE_PAGE, 100, 20 * HUGE_PAGE, 7]
    pieces = [arena.take(size).fill_(number) for number, size in enumerate(sizes)]
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        assert piece.data_ptr() % CACHE_LINE == 0
        assert len(piece) == size
        assert int((piece != number).sum()) == 0


def test_small_tensors_fill_what_large_ones_left() -> None:
    arena = HugePageArena()
    most = HugePageArena.CHUNK
    first, second, third = arena.take(most - 1000), arena.take(most - 5000), arena.take(700)
    assert third.data_ptr() - first.data_ptr() == -(-(most - 1000) // CACHE_LINE) * CACHE_LINE
    assert arena.take(700).data_ptr() - second.data_ptr() == -(-(most - 5000) // CACHE_LINE) * CACHE_LINE
