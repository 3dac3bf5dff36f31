"""What the cache itself costs a token, against length: to append it, to find a position, to hash a block.

Real tables in a real block manager, grown to a length and then by one token at a time; the store is the kernel that a
step calls, for one layer. No model runs. Seconds are medians over many tokens, those that open a new block among them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.kv_study.progress import Progress
from benchmarks.kv_study.sizes import Sizes
from benchmarks.kv_study.studied_model import CPU, StudiedModel
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.page_plan import PagePlan
from kernels.attention import AttentionBackend, KVPages

SEQUENCE = "text"
LOOKUPS = 64  # of one timed round, so that the clock does not count
SEED = 8


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Seconds a token at one length: its place in all tables, its share of a block's hash, a position's slot, its keys
    and values written for one layer."""

    length: int
    append: float
    hashing: float
    lookup: float
    store: float


def measure_upkeep(studied: StudiedModel, sizes: Sizes, progress: Progress) -> tuple[Upkeep, ...]:
    progress.begin("append and lookup", len(sizes.table_lengths))
    found = []
    for length in sizes.table_lengths:
        found.append(upkeep_at(studied.plan(), studied.backend, length, sizes.table_repeats))
        progress.step()
    return tuple(found)


def upkeep_at(plan: PagePlan, backend: AttentionBackend, length: int, repeats: int) -> Upkeep:
    """For a sequence of ``length`` tokens, which grows by ``repeats``."""
    longest = length + repeats
    num_pages = Capacity(plan.groups, plan.block_size, 0, length).peak_pages(longest, length)
    blocks = BlockManager(plan.groups, num_pages, plan.block_size)
    draws = random.Random(SEED)
    token_ids = [draws.randrange(1000) for _ in range(length)]
    hashes = BlockHashes(plan.block_size)
    hashes.extend(token_ids)
    if not blocks.admit(SEQUENCE, blocks.match_prefix(hashes, length), length):
        raise RuntimeError(f"a pool for {longest} tokens has no room for {length}")
    blocks.commit(SEQUENCE, length, hashes)

    appending, hashing = [], []
    for end in range(length + 1, longest + 1):
        token_ids.append(draws.randrange(1000))
        started = time.perf_counter()
        hashes.extend(token_ids)
        hashed = time.perf_counter()
        if not blocks.grow(SEQUENCE, end):
            raise RuntimeError(f"a pool for {longest} tokens has no room for {end}")
        blocks.commit(SEQUENCE, end, hashes)
        appending.append(time.perf_counter() - hashed)
        hashing.append(hashed - started)
    size = plan.block_size
    return Upkeep(
        length=length,
        append=_median_of_blocks(appending, size),
        hashing=_median_of_blocks(hashing, size),
        lookup=_lookup_seconds(blocks, longest, repeats // 8 + 1),
        store=_store_seconds(plan, backend, blocks, longest, repeats),
    )


def _median_of_blocks(seconds: list[float], size: int) -> float:
    """A token's share of what whole blocks take, so that the token that opens one counts as often as it comes."""
    return statistics.median(sum(seconds[at : at + size]) / size for at in range(0, len(seconds) - size + 1, size))


def _lookup_seconds(blocks: BlockManager, length: int, rounds: int) -> float:
    """From a position that a layer of the first group can see to its slot."""
    table = blocks.sequences[SEQUENCE].tables[0]
    first, size = table.first_held * blocks.block_size, blocks.block_size
    page_ids, columns = table.page_ids, blocks.groups[0].pages_per_block
    draws = random.Random(SEED)
    samples = []
    for _ in range(rounds):
        positions = [draws.randrange(first, length) for _ in range(LOOKUPS)]
        started = time.perf_counter()
        for position in positions:
            page_ids[position // size * columns] * size + position % size
        samples.append((time.perf_counter() - started) / LOOKUPS)
    return statistics.median(samples)


def _store_seconds(plan: PagePlan, backend: AttentionBackend, blocks: BlockManager, length: int, repeats: int) -> float:
    """Keys and values of the newest position into the pages of one layer of the first group."""
    cache = plan.allocate(blocks.pool.num_pages, CPU)
    pages = KVPages(*cache.slot_tensors(0))
    row = torch.ones(1, plan.num_kv_heads, plan.head_dim)
    block, offset = divmod(length - 1, plan.block_size)
    page = blocks.sequences[SEQUENCE].tables[0].pages[block][0]
    slot = torch.tensor([page * plan.block_size + offset])
    return _median_seconds(lambda: backend.store_kv(row, row, pages, slot), repeats)


def _median_seconds(call: Callable[[], None], repeats: int) -> float:
    samples = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)
