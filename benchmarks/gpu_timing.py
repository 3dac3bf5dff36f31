"""How long launches take on a GPU, and what its memory and matrix units really give.

Launches are captured in a CUDA graph and replayed, so that the host costs nothing. A list of launches that read
different memory keeps the caches from serving what a model would have to fetch: see ``copies_past_caches``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

PAST_CACHES = 512 * 2**20  # bytes, several times the last cache of any GPU
MOST_COPIES = 64
WARM_SECONDS = 2e-3  # at least that long is one sample
SAMPLES = 15


class Timer(Protocol):
    """Seconds of one launch, of several that do the same with different memory."""

    def __call__(self, launches: Sequence[Callable[[], object]]) -> float: ...


def copies_past_caches(num_bytes: int) -> int:
    """How many copies of a launch's memory outgrow the caches together."""
    return max(1, min(MOST_COPIES, -(-PAST_CACHES // max(num_bytes, 1))))


def graph_seconds(launches: Sequence[Callable[[], object]]) -> float:
    """Median seconds of one launch, from replays of a graph of all of them."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for launch in launches:  # compiles
            launch()
        once = _seconds(launches[-1])
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    rounds = max(1, min(50, round(WARM_SECONDS / (once * len(launches)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for launch in launches:
                launch()
    graph.replay()
    return statistics.median(_seconds(graph.replay) for _ in range(SAMPLES)) / (rounds * len(launches))


def _seconds(action: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    action()
    end.record()
    end.synchronize()
    return max(float(start.elapsed_time(end)) / 1e3, 1e-7)


def copy_bandwidth(timer: Timer, device: torch.device, num_bytes: int) -> float:
    """Bytes per second, read and written, of copying ``num_bytes``."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / timer([lambda: target.copy_(source)])


def matrix_rate(timer: Timer, device: torch.device, size: int) -> float:
    """FLOP/s of a bfloat16 product of two square matrices."""
    a, b = torch.randn(2, size, size, device=device).to(torch.bfloat16)
    return 2 * size**3 / timer([lambda: a @ b])
