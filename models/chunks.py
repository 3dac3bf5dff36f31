"""Chunks of weights on their way into a model, by all threads, each of which works alone.

Knows no formats: a chunk knows what it is and where it goes. Invariant: few chunks are made before they are needed, so
that what they hold takes little memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import torch

from kernels.cpu.quantised_matrix import PANEL_ROWS
from models.parameter import Parameter
from models.places import Places

_CONVERTED_ELEMENTS = 1 << 16  # 256 KiB of float32: stays in a core's second-level cache, and allocators keep little
_STORED_ELEMENTS = 1 << 20  # of what needs no memory on its way: handing out a chunk has a cost of its own


class Chunk(Protocol):
    """Some values of a parameter."""

    @property
    def parameter(self) -> Parameter: ...

    @property
    def num_elements(self) -> int: ...

    def place(self) -> int:
        """Put them into their place; returns their stored bytes. Called by any thread."""


def place_chunks(chunks: Iterable[Chunk], total: int, places: Places, report: Callable[[int, int], None]) -> None:
    """Place all ``chunks``, which are of ``places``; ``report`` hears of stored bytes (done, ``total``)."""
    done = 0

    def place(chunk: Chunk) -> int:
        num_bytes = chunk.place()
        places.filled(chunk.parameter, chunk.num_elements)
        return num_bytes

    with _single_threads() as workers, ThreadPoolExecutor(workers, thread_name_prefix="weights") as pool:
        under_way: deque[Future[int]] = deque()
        for chunk in chunks:
            under_way.append(pool.submit(place, chunk))
            if len(under_way) > 2 * workers:
                done += under_way.popleft().result()
                report(done, total)
        for future in under_way:
            done += future.result()
            report(done, total)
    report(total, total)  # also where some of it is not needed


def row_chunks(shape: tuple[int, ...], *, converted: bool = True) -> Iterator[slice]:
    """Slices of the first dimension, from whole panels on; ``converted``: they become other values on their way."""
    elements = _CONVERTED_ELEMENTS if converted else _STORED_ELEMENTS
    step = max(1, elements // math.prod(shape[1:]) // PANEL_ROWS) * PANEL_ROWS
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


@contextmanager
def _single_threads() -> Iterator[int]:
    """Give torch's threads to a pool of as many workers: an operation that a worker starts runs in that worker alone.

    Threads that start meanwhile inherit the limit; nested teams would wait for each other on busy cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
