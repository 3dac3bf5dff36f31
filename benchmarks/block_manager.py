"""What the block manager costs: microseconds per page for each operation, at pools of a thousand to a million pages.

    python -m benchmarks.block_manager
    python -m benchmarks.block_manager --pages 1000,100000 --repeats 51

The pool is half held, a quarter cached and a quarter free, in sequences of 64 pages of 16 tokens, one layer group.
Thread time, so that other work on the machine counts only through its caches; medians. No model and no tensors.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.machine import Conditions
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager

BLOCK_SIZE = 16
SEQUENCE_PAGES = 64
SEQUENCE_TOKENS = SEQUENCE_PAGES * BLOCK_SIZE
SIZES = (1_000, 10_000, 100_000, 1_000_000)
FLAT = 1.5
NOBODY = 0  # the handle of no sequence

PEERS = """\
vLLM 0.32.0, measured on another machine: allocate 2 to 6 us a page one at a time, 0.8 us in batches of 64; free 1.3 us
and 0.3 us; prefix lookup 1.2 to 1.7 us a page."""


@dataclass(frozen=True)
class Operation:
    """A row of the table: ``sample`` returns nanoseconds of thread time per ``unit``."""

    name: str
    unit: str
    sample: Callable[[], float]
    rare: bool = False  # looks at every page, so a few repeats do


@dataclass(frozen=True)
class Row:
    """Median microseconds of one operation at each pool size."""

    name: str
    unit: str
    microseconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The dearest size over the cheapest."""
        return max(self.microseconds) / min(self.microseconds)


def hashes_of(first_token: int) -> BlockHashes:
    """The chain of a sequence whose tokens count up from ``first_token``."""
    hashes = BlockHashes(BLOCK_SIZE)
    hashes.extend(range(first_token, first_token + SEQUENCE_TOKENS))
    return hashes


class Pool:
    """A block manager in the state that the module describes, and the operations on it."""

    def __init__(self, num_pages: int) -> None:
        self.blocks = BlockManager(plan_groups([None]), num_pages, BLOCK_SIZE)
        self._token = 0
        count = num_pages // SEQUENCE_PAGES
        for index in range(count * 3 // 4):
            hashes = self._fresh_hashes()
            self._admit(f"s{index}", hashes)
            self.blocks.commit(f"s{index}", SEQUENCE_TOKENS, hashes)
        self.known = hashes
        cached = range(0, count * 3 // 4, 3)
        for index in cached:
            self.blocks.free(f"s{index}")

    def operations(self) -> Iterator[Operation]:
        yield Operation("allocate, one at a time", "page", self.allocate)
        yield Operation("allocate, 64 at once", "page", self.allocate_many)
        yield Operation("append a decode token", "token", self.append)
        yield Operation("match a prefix", "page", self.match)
        yield Operation("fork", "page", self.fork)
        yield Operation("free, one at a time", "page", self.free)
        yield Operation("free, 64 at once", "page", self.free_many)
        yield Operation("evict and allocate", "page", self.evict)
        yield Operation("snapshot", "page", self.snapshot, rare=True)
        yield Operation("audit", "page", self.audit, rare=True)

    def allocate(self) -> float:
        pool = self.blocks.pool
        start = time.thread_time_ns()
        blocks = [pool.allocate(0, 1, NOBODY) for _ in range(SEQUENCE_PAGES)]
        spent = time.thread_time_ns() - start
        for block in blocks:
            pool.release(block, NOBODY)
        return spent / SEQUENCE_PAGES

    def free(self) -> float:
        pool = self.blocks.pool
        blocks = [pool.allocate(0, 1, NOBODY) for _ in range(SEQUENCE_PAGES)]
        start = time.thread_time_ns()
        for block in blocks:
            pool.release(block, NOBODY)
        return (time.thread_time_ns() - start) / SEQUENCE_PAGES

    def allocate_many(self) -> float:
        hashes = self._fresh_hashes()
        start = time.thread_time_ns()
        self._admit("one", hashes)
        spent = time.thread_time_ns() - start
        self.blocks.free("one")
        return spent / SEQUENCE_PAGES

    def free_many(self) -> float:
        self._admit("one", self._fresh_hashes())
        start = time.thread_time_ns()
        self.blocks.free("one")
        return (time.thread_time_ns() - start) / SEQUENCE_PAGES

    def append(self) -> float:
        """256 tokens, one at a time: a new page every 16, a registered one as often."""
        blocks, hashes = self.blocks, self._fresh_hashes()
        blocks.admit("one", blocks.match_prefix(hashes, 1), 1)
        blocks.commit("one", 1, hashes)
        start = time.thread_time_ns()
        for length in range(2, 258):
            blocks.grow("one", length)
            blocks.commit("one", length, hashes)
        spent = time.thread_time_ns() - start
        self._forget("one")
        return spent / 256

    def match(self) -> float:
        start = time.thread_time_ns()
        match = self.blocks.match_prefix(self.known, SEQUENCE_TOKENS + 1)
        spent = time.thread_time_ns() - start
        assert match.num_tokens == SEQUENCE_TOKENS
        return spent / SEQUENCE_PAGES

    def fork(self) -> float:
        hashes = self._fresh_hashes()
        self._admit("parent", hashes)
        self.blocks.commit("parent", SEQUENCE_TOKENS, BlockHashes(BLOCK_SIZE))
        start = time.thread_time_ns()
        self.blocks.fork("parent", "child")
        spent = time.thread_time_ns() - start
        self.blocks.free("child")
        self.blocks.free("parent")
        return spent / SEQUENCE_PAGES

    def evict(self) -> float:
        """Take pages when none is free: hold all that are, then allocate out of the cached ones and give them back."""
        blocks, pool = self.blocks, self.blocks.pool
        hashes = self._fresh_hashes()
        rest = pool.allocate(0, pool.free_pages, NOBODY)
        start = time.thread_time_ns()
        self._admit("one", hashes)
        spent = time.thread_time_ns() - start
        blocks.commit("one", SEQUENCE_TOKENS, hashes)
        blocks.free("one")  # as many are cached again
        pool.release(rest, NOBODY)
        return spent / SEQUENCE_PAGES

    def snapshot(self) -> float:
        start = time.thread_time_ns()
        self.blocks.snapshot()
        return (time.thread_time_ns() - start) / self.blocks.pool.num_pages

    def audit(self) -> float:
        start = time.thread_time_ns()
        problems = self.blocks.audit()
        assert not problems, problems
        return (time.thread_time_ns() - start) / self.blocks.pool.num_pages

    def _admit(self, name: str, hashes: BlockHashes) -> None:
        match = self.blocks.match_prefix(hashes, SEQUENCE_TOKENS)
        if not self.blocks.admit(name, match, SEQUENCE_TOKENS):
            raise RuntimeError(f"no room for {name}")

    def _forget(self, name: str) -> None:
        """Free a sequence, and leave nothing of it cached."""
        for table in self.blocks.sequences[name].tables:
            for block in table.held():
                self.blocks.pool.unregister(block)
        self.blocks.free(name)

    def _fresh_hashes(self) -> BlockHashes:
        self._token += SEQUENCE_TOKENS
        return hashes_of(self._token)


def measure(sizes: Sequence[int], repeats: int) -> list[Row]:
    """Every operation at every size; operations that look at all pages get a tenth of the repeats."""
    columns: dict[tuple[str, str], list[float]] = {}
    for size in sizes:
        for operation in Pool(size).operations():
            count = max(3, repeats // 10) if operation.rare else repeats
            operation.sample()
            samples = [operation.sample() for _ in range(count)]
            columns.setdefault((operation.name, operation.unit), []).append(statistics.median(samples) / 1000)
    return [Row(name, unit, tuple(values)) for (name, unit), values in columns.items()]


def table(rows: Sequence[Row], sizes: Sequence[int]) -> str:
    """Markdown: a line per operation, a column per pool size, and the ratio between them."""
    lines = [
        "| us per | " + " | ".join(f"{size:,} pages" for size in sizes) + " | max / min |",
        "|---|" + "---|" * (len(sizes) + 1),
    ]
    for row in rows:
        figures = " | ".join(f"{value:.3f}" for value in row.microseconds)
        lines.append(f"| {row.unit}: {row.name} | {figures} | {row.ratio:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.block_manager", description=__doc__.split("\n")[0])
    parser.add_argument("--pages", default=",".join(map(str, SIZES)), help="pool sizes, comma-separated (%(default)s)")
    parser.add_argument("--repeats", type=int, default=201, help="samples per median (%(default)s)")
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.pages.split(",")]
    conditions = Conditions.now()
    rows = measure(sizes, options.repeats)
    print(f"{conditions}\nmedians of {options.repeats} samples, thread time, one thread; page size {BLOCK_SIZE}\n")
    print(table(rows, sizes))
    print(f"\n{PEERS}")
    uneven = [row.name for row in rows if row.ratio > FLAT]
    print(f"\nnot flat within {FLAT}x: {', '.join(uneven) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
