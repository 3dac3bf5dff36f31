"""Memory against length, by three ways of keeping a cache: reserved whole, grown by doubling, and in pages.

Pages are counted in the real block manager while a sequence grows in it, token by token. What contiguous caches take is
arithmetic: one row per token in each layer, whatever its window. A mix of requests runs through the real scheduler
(``benchmarks.page_waste``), and contiguous caches hold the same requests by their mean size over the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.kv_study.progress import Progress
from benchmarks.kv_study.sizes import Sizes
from benchmarks.kv_study.studied_model import StudiedModel
from benchmarks.page_waste import LONGEST, WasteReport, lengths, run_trace
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.page_plan import PagePlan

FIRST_CAPACITY = 16  # tokens that a doubling cache begins with
SEQUENCE = "text"


@dataclass(frozen=True, slots=True)
class PagesAtLength:
    """What one sequence of ``length`` tokens holds: bytes of pages, and those of them in slots not filled."""

    length: int
    held: int
    wasted: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests at once in the same memory, and the share of what they hold that is not filled.

    ``reserved`` and ``doubling`` are computed, ``pages`` and ``windowed`` measured: every layer keeps everything, or
    what it sees. ``estimated_pages`` is what the computation would say of pages.
    """

    memory: int
    requests: int
    mean_input: float
    mean_output: float
    longest: int
    reserved: float
    reserved_waste: float
    doubling: float
    doubling_waste: float
    estimated_pages: float
    pages: float
    pages_waste: float
    windowed: float
    windowed_waste: float


@dataclass(frozen=True, slots=True)
class Memory:
    """``token_bytes``: keys and values of one token in all layers. ``uniform``: pages where all layers keep all."""

    token_bytes: int
    block_size: int
    reserved_tokens: int
    uniform: tuple[PagesAtLength, ...]
    grouped: tuple[PagesAtLength, ...]
    mix: Mix

    def reserved(self) -> int:
        """Bytes of one sequence of any length."""
        return self.reserved_tokens * self.token_bytes

    def doubling(self, length: int) -> int:
        return doubled_capacity(length) * self.token_bytes

    def doubling_copied(self, length: int) -> int:
        """Bytes moved on the way to ``length``: every capacity but the last was copied once."""
        return (doubled_capacity(length) - FIRST_CAPACITY) * self.token_bytes


def doubled_capacity(length: int) -> int:
    """Tokens that a cache of ``length`` has room for, when it doubles whenever it is full."""
    capacity = FIRST_CAPACITY
    while capacity < length:
        capacity *= 2
    return capacity


def measure_memory(studied: StudiedModel, sizes: Sizes, progress: Progress) -> Memory:
    uniform = studied.plan((None,) * studied.spec.num_layers)
    grouped = studied.plan()
    progress.begin("memory", 4 * sizes.memory_longest)
    one_by_one = [pages_by_length(plan, sizes.memory_longest, progress) for plan in (uniform, grouped)]
    mix = measure_mix(uniform, grouped, sizes)
    return Memory(
        token_bytes=uniform.page_bytes // uniform.block_size,
        block_size=uniform.block_size,
        reserved_tokens=sizes.memory_longest,
        uniform=one_by_one[0],
        grouped=one_by_one[1],
        mix=mix,
    )


def pages_by_length(plan: PagePlan, longest: int, progress: Progress | None = None) -> tuple[PagesAtLength, ...]:
    """One sequence that decodes from 1 to ``longest`` tokens in a real block manager."""
    capacity = Capacity(plan.groups, plan.block_size, 0, 1)
    blocks = BlockManager(plan.groups, capacity.peak_pages(longest, 1), plan.block_size, enable_prefix_caching=False)
    hashes = BlockHashes(plan.block_size)
    slot_bytes = plan.page_bytes // plan.block_size
    found = []
    if not blocks.admit(SEQUENCE, blocks.match_prefix(hashes, 1), 1):
        raise RuntimeError("an empty pool has no room for one token")
    for length in range(1, longest + 1):
        if not blocks.grow(SEQUENCE, length):
            raise RuntimeError(f"a pool for {longest} tokens has no room for {length}")
        blocks.commit(SEQUENCE, length, hashes)
        usage = blocks.usage()
        wasted = sum(group.wasted_slots for group in usage.groups)
        found.append(PagesAtLength(length, usage.held * plan.page_bytes, wasted * slot_bytes))
        if progress is not None:
            progress.step()
    return tuple(found)


def measure_mix(uniform: PagePlan, grouped: PagePlan, sizes: Sizes) -> Mix:
    """The same memory, ``sizes.memory_pages`` pages where all layers keep everything, held by the same requests."""
    trace = lengths(sizes.memory_requests)
    memory = sizes.memory_pages * uniform.page_bytes
    token_bytes = uniform.page_bytes / uniform.block_size
    room = memory / token_bytes
    in_pages = run_trace(sizes.memory_requests, sizes.memory_pages, _windows(uniform))
    in_groups = run_trace(sizes.memory_requests, memory // grouped.page_bytes, _windows(grouped))
    filled, doubled, paged = mean_sizes(trace, uniform.block_size)
    return Mix(
        memory=memory,
        requests=len(trace),
        mean_input=in_pages.mean_input,
        mean_output=in_pages.mean_output,
        longest=LONGEST,
        reserved=room // LONGEST,
        reserved_waste=1 - filled / LONGEST,
        doubling=room / doubled,
        doubling_waste=1 - filled / doubled,
        estimated_pages=room / paged,
        **_measured("pages", in_pages),
        **_measured("windowed", in_groups),
    )


def mean_sizes(trace: Sequence[tuple[int, int]], block_size: int) -> tuple[float, float, float]:
    """Tokens of a running request, averaged over all decoding steps of ``trace``: written, doubled, in whole blocks."""
    steps = filled = doubled = paged = 0
    for num_input, num_output in trace:
        for length in range(num_input, num_input + num_output):
            filled += length
            doubled += doubled_capacity(length)
            paged += -(-length // block_size) * block_size
        steps += num_output
    return filled / steps, doubled / steps, paged / steps


def _measured(name: str, report: WasteReport) -> dict[str, float]:
    return {name: report.running, f"{name}_waste": report.waste}


def _windows(plan: PagePlan) -> list[int | None]:
    pairs = sorted((layer, group.window) for group in plan.groups for layer in group.layers)
    return [window for _, window in pairs]
