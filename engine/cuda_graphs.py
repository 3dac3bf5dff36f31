"""DecodeGraphs: recorded steps of pure decodes, one per batch size, replayed instead of launched kernel by kernel.

A decode step of a small model is hundreds of kernels of a few microseconds: launching them one by one takes the host
longer than running them takes the device. A graph launches them at once. It reads and writes the addresses it was
recorded with, so that what a step is made of must lie in buffers that never move; null sequences fill a batch up to the
next size that was recorded.

Knows sizes and the order of recording, not what a step does. Invariant: all graphs share one pool of memory, and only
one of them runs at a time: what a replay leaves there is gone with the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

import torch


class Graph(Protocol):
    """A recorded step."""

    def replay(self) -> None:
        """Queue all of it."""


class GraphRecorder(Protocol):
    """Records what a function queues on a device."""

    def record(self, step: Callable[[], None]) -> Graph:
        """Run ``step`` for real once, so that everything it needs is compiled and loaded, and record it then."""


class CudaGraphRecorder:
    """CUDA (and HIP) graphs over one shared memory pool. Not yet run on a GPU."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], None]) -> Graph:
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        return graph


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes worth a graph: 1, 2, 4, then every 8 up to 256, every 32 beyond, and ``max_num_seqs`` itself.

    Padding costs at most 7 null sequences up to 256: less than a tenth of the kernels' tiles of 16 rows and more.
    """
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, max_num_seqs, 32)]
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


class DecodeGraphs:
    """Graphs for steps of 1 to ``sizes[-1]`` decodes; none before `record_all`."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self._graphs: dict[int, Graph] = {}

    def record_all(self, recorder: GraphRecorder, ready: Callable[[int], Callable[[], None]]) -> None:
        """Record every size, the largest first: the others then fit into the memory it took.

        ``ready`` brings the buffers into the state of a step of that size, and returns the step. All or nothing: where
        one cannot be recorded, none is kept and the error goes on.
        """
        self._graphs = {size: recorder.record(ready(size)) for size in reversed(self.sizes)}

    def size_for(self, num_seqs: int) -> int | None:
        """The smallest recorded size that holds ``num_seqs``; None where there is none."""
        if not self._graphs or not 0 < num_seqs <= self.sizes[-1]:
            return None
        return self.sizes[bisect_left(self.sizes, num_seqs)]

    def replay(self, size: int) -> None:
        self._graphs[size].replay()
