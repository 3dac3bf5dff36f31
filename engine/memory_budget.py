"""MemoryBudget: what of a GPU's memory may become KV pages, from what a start has measured.

    total x share = in use (weights, the driver's own, other processes) + largest step + graphs + pages

The share counts everything on the device: what other processes hold when the pages are cut is theirs, and left alone.
The largest step is run before there are pages, and its peak measured; the memory of graphs is known only once they are
recorded, over pages that must be there by then, so that it is estimated from the peak of the largest step they hold.

Knows bytes, not tensors. Invariant: the parts add up to the share, or a ConfigError says which do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from engine.errors import ConfigError

GPU_MEMORY_SHARE = 0.9  # of the device, weights, activations and other processes included
GRAPH_BYTES = 4 << 20  # of a recorded graph beside its memory pool: an estimate, no figure was taken yet
ALLOCATION_BYTES = 2 << 20  # what large allocations are rounded up to


class MemoryReader(Protocol):
    """The memory of one device, in bytes."""

    def total(self) -> int: ...

    def in_use(self) -> int:
        """By anyone, without what this process's allocator only keeps for later."""

    def peak_of(self, call: Callable[[], None]) -> int:
        """The most that ``call`` took from the device while it ran, beyond what was in use before."""


class CudaMemory:
    """A GPU's memory, by the driver and by torch's caching allocator. Not yet run on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def in_use(self) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def peak_of(self, call: Callable[[], None]) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_reserved(self._device)
        call()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_reserved(self._device)) - before


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of one device. ``weights`` are part of ``in_use``."""

    total: int
    share: float
    in_use: int
    weights: int
    largest_step: int
    graphs: int

    @property
    def pages(self) -> int:
        """What is left for pages; less than nothing where the rest is too much already."""
        return int(self.total * self.share) - self.in_use - self.largest_step - self.graphs

    def __str__(self) -> str:
        return (
            f"{self.share:.0%} of the GPU's {_gigabytes(self.total)}, less {_gigabytes(self.in_use)} in use "
            f"({_gigabytes(self.weights)} of it weights), {_gigabytes(self.largest_step)} for the largest step and "
            f"{_gigabytes(self.graphs)} for CUDA graphs"
        )


def measure(
    memory: MemoryReader,
    share: float | None,
    weights: int,
    *,
    largest_step: Callable[[], None],
    largest_decode: Callable[[], None],
    num_graphs: int,
    logits_bytes: int,
) -> MemoryBudget:
    """Run both steps and measure. ``logits_bytes`` are kept by the graphs, which are ``num_graphs``, maybe none.

    Each step runs twice, the first time to let everything it needs be compiled and loaded.
    """
    largest_step()
    step = memory.peak_of(largest_step)
    graphs = 0
    if num_graphs:
        largest_decode()
        graphs = memory.peak_of(largest_decode) + logits_bytes + num_graphs * GRAPH_BYTES
    return MemoryBudget(memory.total(), share or GPU_MEMORY_SHARE, memory.in_use(), weights, step, graphs)


_NO_HOST_MEMORY = "can't allocate memory"  # what torch says of a CPU's; it has no class of its own for that


class MemoryUse(Enum):
    """What a start takes memory for, and what can be done where there is too little."""

    BUFFERS = (
        "making block tables and buffers of steps",
        "a lower --max-num-seqs, --max-model-len or --max-num-batched-tokens",
    )
    WEIGHTS = ("loading the weights", "a smaller --dtype or a model of fewer parameters")
    LARGEST_STEP = ("running the largest step", "a lower --max-num-batched-tokens or --max-num-seqs")
    PAGES = ("cutting the pages", "a lower --gpu-memory-utilization or --kv-cache-memory-bytes")
    GRAPHS = ("recording CUDA graphs", "--enforce-eager, or a lower --gpu-memory-utilization")


class StartMemory:
    """What a start has taken so far, for the sentence in which too little memory ends it. ``memory`` None: a CPU's."""

    def __init__(self, memory: MemoryReader | None) -> None:
        self._memory = memory
        self._taken: list[str] = []

    def note(self, what: str, size: int) -> None:
        """Something of ``size`` bytes has its place now."""
        self._taken.append(f"{_gigabytes(size)} of {what}")

    @contextmanager
    def taking(self, use: MemoryUse) -> Iterator[None]:
        """Turn running out of memory in here into a ConfigError of one sentence, with numbers."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            doing, remedy = use.value
            raise ConfigError(f"out of GPU memory while {doing}{self._numbers()}: try {remedy}") from error
        except RuntimeError as error:
            if _NO_HOST_MEMORY not in str(error):
                raise
            doing, remedy = use.value
            raise ConfigError(f"out of memory while {doing}{self._numbers()}: try {remedy}") from error

    def _numbers(self) -> str:
        parts = list(self._taken)
        if self._memory is not None:
            parts.append(f"{_gigabytes(self._memory.in_use())} in use of {_gigabytes(self._memory.total())}")
        return f" ({', '.join(parts)})" if parts else ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
