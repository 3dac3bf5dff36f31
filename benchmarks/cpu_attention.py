"""How much of the memory's bandwidth attention of a decode step reaches on CPUs, by batch, length and page dtype.

    python -m benchmarks.cpu_attention
    python -m benchmarks.cpu_attention --write docs/benchmarks.md

One layer, one query row a sequence, pages in random order; GB/s of keys, values and scales that are read, beside what
reading a large buffer gives in the same run. Sizes that the caches hold can be faster than memory and are marked; of
the others at least ``TARGET`` is wanted, and those that miss it are listed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cpu_rates import READ_BYTES, RateMeter
from benchmarks.machine import Conditions, cache_bytes
from benchmarks.section import write_section
from kernels.attention import AttentionBackend, AttentionMetadata, KVPages
from kernels.backends import choose_backend
from kernels.cpu.huge_pages import use_huge_pages
from kernels.quantisation import SCALE_DTYPE, is_quantised
from kernels.roofline import AttentionShape, decode

SECTION = "cpu attention"
TARGET = 0.8
BLOCK_SIZE = 16
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
}
PATTERN_PAGES = 64  # different ones; more are copies of these


@dataclass(frozen=True, slots=True)
class Case:
    """``batch`` sequences of ``length`` tokens each, over pages of a dtype by its flag's name."""

    dtype: str
    batch: int
    length: int


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes of pages that one call reads, and the median seconds it takes."""

    case: Case
    bytes: int
    seconds: float

    @property
    def bandwidth(self) -> float:
        return self.bytes / self.seconds


class Bench:
    """Pages for the largest case of one dtype, on which all its cases are timed."""

    def __init__(self, backend: AttentionBackend, heads: AttentionShape, dtype: str, num_pages: int) -> None:
        self._backend = backend
        self._heads = heads
        page_dtype = DTYPES[dtype]
        shape = (num_pages + 1, heads.num_kv_heads, BLOCK_SIZE)
        key, value = (_filled((*shape, heads.head_dim), page_dtype) for _ in range(2))
        scales = [torch.full(shape, 0.01, dtype=SCALE_DTYPE) for _ in range(2)] if is_quantised(page_dtype) else []
        self._pages = KVPages(key, value, *scales)
        self._order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1)).to(torch.int32) + 1
        self._query_dtype = torch.float32 if is_quantised(page_dtype) else page_dtype

    def measure(self, case: Case, seconds: float) -> Result:
        """Repeat one call for about so long, five times at least."""
        blocks = case.length // BLOCK_SIZE
        metadata = AttentionMetadata(
            query_start_loc=torch.arange(case.batch + 1, dtype=torch.int32),
            seq_lens=torch.full((case.batch,), case.length, dtype=torch.int32),
            block_table=self._order[: case.batch * blocks].reshape(case.batch, blocks).contiguous(),
            slot_mapping=torch.full((case.batch,), -1, dtype=torch.int64),
            max_query_len=1,
            max_seq_len=case.length,
        )
        query = torch.randn(case.batch, self._heads.num_q_heads, self._heads.head_dim).to(self._query_dtype)
        scale = self._heads.head_dim**-0.5
        self._backend.attend(query, self._pages, metadata, scale=scale)
        taken: list[float] = []
        while len(taken) < 5 or sum(taken) < seconds:
            started = time.perf_counter()
            self._backend.attend(query, self._pages, metadata, scale=scale)
            taken.append(time.perf_counter() - started)
        return Result(case, decode(self._heads, [case.length] * case.batch).bytes, statistics.median(taken))


def _filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers as keys are, the same few pages again and again: drawing all of them would take longer than measuring."""
    pages = torch.empty(shape, dtype=dtype)
    use_huge_pages(pages)  # as a server does
    pattern = torch.randn((PATTERN_PAGES, *shape[1:]), generator=torch.Generator().manual_seed(0))
    pattern = (pattern * 40 if dtype == torch.int8 else pattern).to(dtype)
    for start in range(0, shape[0], PATTERN_PAGES):
        part = pages[start : start + PATTERN_PAGES]
        part.copy_(pattern[: len(part)])
    return pages


def page_bytes(dtype: str) -> int:
    """Of an element."""
    return DTYPES[dtype].itemsize


@torch.inference_mode()
def measure_all(
    heads: tuple[int, int, int], dtypes: Sequence[str], batches: Sequence[int], lengths: Sequence[int],
    seconds: float, meter: RateMeter,
) -> Iterator[Result]:  # fmt: skip
    """Every case, with a sample of the bandwidth before each dtype and after the last."""
    backend, _ = choose_backend(torch.device("cpu"))
    num_pages = max(batches) * max(lengths) // BLOCK_SIZE
    for dtype in dtypes:
        meter.sample(())
        # the rows of queries and outputs are no pages
        bench = Bench(backend, AttentionShape(*heads, dtype_bytes=0, page_bytes=page_bytes(dtype)), dtype, num_pages)
        for batch in batches:
            for length in lengths:
                yield bench.measure(Case(dtype, batch, length), seconds)
        del bench
    meter.sample(())


def table(results: Sequence[Result], bandwidth: float, cached_bytes: int) -> str:
    """A row per batch and length, a column per dtype: GB/s, and the share of ``bandwidth``."""
    by_case = {result.case: result for result in results}
    dtypes = list(dict.fromkeys(result.case.dtype for result in results))
    lines = ["| batch | length | " + " | ".join(dtypes) + " |", "|---:|---:|" + "---:|" * len(dtypes)]
    for batch, length in dict.fromkeys((result.case.batch, result.case.length) for result in results):
        cells = []
        for dtype in dtypes:
            result = by_case[Case(dtype, batch, length)]
            mark = " c" if result.bytes <= cached_bytes else ""
            cells.append(f"{result.bandwidth / 1e9:.1f} ({result.bandwidth / bandwidth:.0%}){mark}")
        lines.append(f"| {batch} | {length:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(results: Sequence[Result], bandwidth: float, cached_bytes: int) -> str:
    """Which of the cases that no cache holds are below the target."""
    large = [result for result in results if result.bytes > cached_bytes]
    missed = [result for result in large if result.bandwidth < TARGET * bandwidth]
    text = f"{len(large) - len(missed)} of {len(large)} cases that the caches do not hold reach {TARGET:.0%}"
    names = [f"{one.case.dtype} {one.case.batch} x {one.case.length:,}" for one in missed]
    return f"{text}; below it: {', '.join(names)}." if names else f"{text}."


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu_attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--heads", type=_numbers, default=[16, 4, 128], metavar="Q,KV,DIM", help="default: 16,4,128")
    parser.add_argument("--dtypes", default=",".join(DTYPES), metavar="DTYPES", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--batches", type=_numbers, default=[1, 8, 32], metavar="N,N")
    parser.add_argument("--lengths", type=_numbers, default=[512, 4096, 16384], metavar="N,N", help="multiples of 16")
    parser.add_argument("--seconds", type=float, default=0.5, help="to measure a case for (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    parser.add_argument("--section", default=SECTION, metavar="NAME", help="of the markers (default: %(default)s)")
    arguments = parser.parse_args(argv)
    dtypes = arguments.dtypes.split(",")
    if unknown := set(dtypes) - DTYPES.keys():
        parser.error(f"--dtypes {', '.join(sorted(unknown))}: choose from {', '.join(DTYPES)}")
    if len(arguments.heads) != 3 or any(length % BLOCK_SIZE for length in arguments.lengths):
        parser.error(f"--heads are three numbers, and --lengths multiples of {BLOCK_SIZE}")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    conditions = Conditions.now()
    meter = RateMeter(READ_BYTES)
    num_q, num_kv, dim = arguments.heads
    results = list(
        measure_all((num_q, num_kv, dim), dtypes, arguments.batches, arguments.lengths, arguments.seconds, meter)
    )
    bandwidth, cached = meter.rates().bandwidth, cache_bytes()
    facts = (
        f"{conditions}; {torch.get_num_threads()} threads, {num_q} query and {num_kv} KV heads of {dim}. Read "
        f"bandwidth {bandwidth / 1e9:.1f} GB/s; c: no more than the {cached / 2**20:.0f} MiB of the caches."
    )
    text = f"{facts}\n\n{table(results, bandwidth, cached)}\n\n{verdict(results, bandwidth, cached)}"
    print(text)
    if arguments.write:
        write_section(arguments.write, arguments.section, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
