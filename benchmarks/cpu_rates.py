"""What this machine's memory and multipliers give at most, measured where and when something else is held against it.

Knows no model. Bandwidth is that of reading a buffer many times as large as the caches, with all of torch's threads;
the rate of products is the best of a few ways to multiply large matrices of one operand type, ours among them. Rates
are medians of samples, which are taken before and after what they are for, so that a slow minute counts for both.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from kernels.backends import choose_backend
from kernels.cpu.backend import NativeBackend
from kernels.cpu.dense_product import NativeDense
from kernels.cpu.quantised_matrix import QuantisedMatrix, QuantisedProduct, WeightKind
from kernels.roofline import Cost

READ_BYTES = 1 << 29
ROWS, SIZE = 512, 2048  # of a product: large enough to be bound by arithmetic
REPEATS = 5
HOPELESS = 8  # times as slow as the fastest way: not tried again, as some take seconds where others take milliseconds
INT8, BFLOAT16, FLOAT32 = "int8", "bfloat16", "float32"


@dataclass(frozen=True, slots=True)
class Rates:
    """``bandwidth`` in bytes/s, and FLOP/s (two for a product and its sum) by operand type."""

    bandwidth: float
    flops: dict[str, float]

    def floor_seconds(self, cost: Cost, operands: str) -> float:
        """The longer of moving the bytes and of multiplying operands of that type."""
        return max(cost.bytes / self.bandwidth, cost.flops / self.flops[operands])

    def is_bound_by_memory(self, cost: Cost, operands: str) -> bool:
        return cost.bytes / self.bandwidth >= cost.flops / self.flops[operands]

    def __str__(self) -> str:
        products = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in self.flops.items())
        return f"read bandwidth {self.bandwidth / 1e9:.1f} GB/s; products, in 10^9 operations/s: {products}"


class RateMeter:
    """Takes samples whenever it is asked to, and says what they come to."""

    def __init__(self, read_bytes: int = READ_BYTES, size: int = SIZE) -> None:
        self._readings = _readings(read_bytes)
        self._read_bytes = read_bytes
        self._products = _products(size)
        self._flops = 2 * ROWS * size * size
        self._seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._hopeless: set[tuple[str, int]] = set()

    @torch.inference_mode()
    def sample(self, operands: Sequence[str] = (INT8, BFLOAT16, FLOAT32), repeats: int = REPEATS) -> None:
        """Time every way of reading, and every way of multiplying these operands, some times."""
        for kind, ways in (("read", self._readings), *((name, self._products[name]) for name in operands)):
            tried = [
                (number, way, _seconds(way)) for number, way in enumerate(ways) if (kind, number) not in self._hopeless
            ]
            fastest = min((seconds for *_, seconds in tried), default=0.0)
            for number, way, seconds in tried:
                if seconds > HOPELESS * fastest:
                    self._hopeless.add((kind, number))
                else:
                    self._seconds[kind, number] += [_seconds(way) for _ in range(repeats)]

    def rates(self) -> Rates:
        """Of all samples so far: the median of the fastest way."""
        best: dict[str, float] = {}
        for (kind, _), seconds in self._seconds.items():
            median = statistics.median(seconds)
            best[kind] = min(median, best.get(kind, median))
        bandwidth = self._read_bytes / best.pop("read")
        return Rates(bandwidth, {kind: self._flops / seconds for kind, seconds in best.items()})


def _seconds(way: Callable[[], object]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def _readings(num_bytes: int) -> list[Callable[[], object]]:
    numbers = torch.ones(num_bytes // 4)
    rows = numbers.view(-1, min(len(numbers), 4096))
    vector = torch.ones(rows.shape[1])
    return [numbers.sum, numbers.amax, lambda: torch.mv(rows, vector)]


def _products(size: int) -> dict[str, list[Callable[[], object]]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, size, generator=generator)
    weight = torch.randn(size, size, generator=generator)
    codes, code_weight = x.mul(40).to(torch.int8), weight.mul(40).to(torch.int8).t().contiguous()
    short, short_weight = x.bfloat16(), weight.bfloat16()
    found: dict[str, list[Callable[[], object]]] = {
        INT8: [lambda: torch._int_mm(codes, code_weight)],
        BFLOAT16: [lambda: F.linear(short, short_weight)],
        FLOAT32: [lambda: F.linear(x, weight)],
    }
    backend, _ = choose_backend(torch.device("cpu"))
    if isinstance(backend, NativeBackend):
        for kind in (WeightKind.Q8_0, WeightKind.Q4_1):  # some processors multiply codes of fewer bits faster
            matrix = QuantisedMatrix(backend.library, kind, size, size)
            matrix.pack_floats(0, weight)
            found[INT8].append(partial(QuantisedProduct([matrix]).multiply, x))
        dense = NativeDense(backend.library).matrix(short_weight, None)
        if dense is not None:
            found[BFLOAT16].append(lambda: dense.multiply(short))
    return found
