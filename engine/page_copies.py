"""Page contents that move in the order of a device's queue, so that the host waits for none of it.

Pages of the host are read and written by queued copies alone: whatever comes later in the queue, be it a step or the
next move, finds what the moves before it left, and a page of the host may be given away as soon as its copy is queued.
So nothing here keeps an event; the numbers of pages travel through memory that the stream gives out and takes back.

Knows pages and tensors, not who owns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from block_manager.kv_cache import KVCache
from engine.step_stream import StepStream

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def queue_copy(cache: KVCache, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copy pages within the device's ``cache``: most often one, so that nothing is gathered, and nothing sent."""
    for pages in _bits(cache):
        for source, target in zip(sources, targets, strict=True):
            pages[target].copy_(pages[source])


def queue_out(
    stream: StepStream, cache: KVCache, host: KVCache, sources: Sequence[int], targets: Sequence[int]
) -> None:
    """Copy pages of the device's ``cache`` to pages of ``host``."""
    sources, targets = _by_second(sources, targets)
    origin = _numbers(stream, sources)
    for pages, kept in zip(_bits(cache), _bits(host), strict=True):
        gathered = pages.index_select(0, origin)
        for first, start, end in _runs(targets):
            stream.download(gathered[start:end], kept[first : first + end - start])


def queue_in(stream: StepStream, cache: KVCache, host: KVCache, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copy pages of ``host`` to pages of the device's ``cache``."""
    targets, sources = _by_second(targets, sources)
    goal = _numbers(stream, targets)
    for pages, kept in zip(_bits(cache), _bits(host), strict=True):
        gathered = torch.empty((len(sources), *pages.shape[1:]), dtype=pages.dtype, device=pages.device)
        for first, start, end in _runs(sources):
            stream.upload(kept[first : first + end - start], gathered[start:end])
        pages.index_copy_(0, goal, gathered)


def _bits(cache: KVCache) -> list[torch.Tensor]:
    """Every tensor of pages as integers, which can be gathered whatever they stand for."""
    return [pages.view(_INTEGERS[pages.dtype.itemsize]) for pages in cache.tensors()]


def _numbers(stream: StepStream, pages: Sequence[int]) -> torch.Tensor:
    """The numbers of pages on the device, int64."""
    host = stream.host_buffer(len(pages), torch.int64)
    host.copy_(torch.tensor(pages))
    numbers = torch.empty(len(pages), dtype=torch.int64, device=stream.device)
    stream.upload(host, numbers)
    return numbers


def _by_second(first: Sequence[int], second: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Both in the order of the second: neighbours among pages of the host move together."""
    order = sorted(range(len(second)), key=second.__getitem__)
    return [first[place] for place in order], [second[place] for place in order]


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The first page of each run of pages that lie behind each other, and its places ``start : end``."""
    start = 0
    for end in range(1, len(pages) + 1):
        if end == len(pages) or pages[end] != pages[end - 1] + 1:
            yield pages[start], start, end
            start = end
