"""The ledger: where every page is, and the proof that the sums are right.

Reads pool and tables and changes nothing, but for `orphans_returned`, which gives pages that were found in no place
back. `BlockManager` offers these as methods.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from block_manager.block import KVBlock
from block_manager.block_pool import BlockPool
from block_manager.groups import LayerGroup
from block_manager.page_map import PageState
from block_manager.sequence import SequencePages
from block_manager.usage import GroupUsage, PageSnapshot, PageUsage


def usage(
    pool: BlockPool, groups: Sequence[LayerGroup], block_size: int, sequences: Collection[SequencePages]
) -> PageUsage:
    """Pages by state and group, how full the held ones are, and how long cached ones have waited."""
    partly_filled: dict[KVBlock, int] = {}  # block -> tokens in it; one that is shared counts once
    for sequence in sequences:
        for table in sequence.tables:
            for index in range(max(table.first_held, sequence.num_tokens // block_size), len(table)):
                block = table.blocks[index]
                assert block is not None
                fill = min(block_size, max(0, sequence.num_tokens - index * block_size))
                partly_filled[block] = max(partly_filled.get(block, 0), fill)
    wasted, shared = [0] * len(groups), [0] * len(groups)
    for block, fill in partly_filled.items():
        wasted[block.group] += (block_size - fill) * len(block.pages)
    for block in pool.shared:
        shared[block.group] += len(block.pages)
    return PageUsage(
        total=pool.num_pages,
        free=pool.free_pages,
        groups=tuple(
            GroupUsage(
                name=group.name,
                cached=pool.cached_pages[index],
                held=pool.held_pages[index],
                shared=shared[index],
                evicted=pool.evicted_pages[index],
                held_slots=pool.held_pages[index] * block_size,
                wasted_slots=wasted[index],
            )
            for index, group in enumerate(groups)
        ),
        oldest_cached_seconds=pool.oldest_cached_seconds,
    )


def snapshot(
    pool: BlockPool, groups: Sequence[LayerGroup], block_size: int, sequences: Collection[SequencePages]
) -> PageSnapshot:
    """Every page at this moment: a copy of the page map, plus a little work per open sequence and shared block."""
    columns = pool.pages.copy()
    full = bytes(0 if state == PageState.FREE else block_size for state in range(256))
    fills = bytearray(columns.states.translate(full))
    for sequence in sequences:
        for table in sequence.tables:
            for index in range(max(table.first_held, sequence.num_tokens // block_size), len(table)):
                fill = min(block_size, max(0, sequence.num_tokens - index * block_size))
                for page in table.pages[index]:
                    fills[page] = fill
    names = {sequence.handle: sequence.sequence_id for sequence in sequences}
    shared_owners = {
        page: tuple(sorted(names[holder] for holder in block.holders)) for block in pool.shared for page in block.pages
    }
    return PageSnapshot(columns, bytes(fills), tuple(group.name for group in groups), names, shared_owners)


def audit(pool: BlockPool, groups: Sequence[LayerGroup], sequences: Collection[SequencePages]) -> list[str]:
    """Account for every page; returns what is wrong, in words that name the owner, or an empty list."""
    problems: list[str] = []
    tables: dict[KVBlock, list[str]] = {}
    handles: dict[KVBlock, set[int]] = {}
    for sequence in sequences:
        for group, table in zip(groups, sequence.tables, strict=True):
            where = f"{sequence.sequence_id}/{group.name}"
            problems += table.problems(where)
            for block in table.blocks:
                if block is not None:
                    tables.setdefault(block, []).append(where)
                    handles.setdefault(block, set()).add(sequence.handle)
    for block, owners in tables.items():
        if block.holders != handles[block] or len(owners) != len(block.holders):
            problems.append(f"{block} is in the tables of {', '.join(owners)}, but its holders are {block.holders}")
        if (len(block.holders) > 1) != (block in pool.shared):
            problems.append(f"{block} of {owners[0]} is {'not ' if block.ref_count > 1 else ''}listed as shared")
    cached = list(pool.cached_blocks())
    for block in cached:
        if block.holders or block.block_hash is None:
            problems.append(f"{block} is in the free queue")
    places, misplaced = _places(pool, cached, tables)
    problems += misplaced
    problems += [f"page {page} is nowhere" for page in range(1, pool.num_pages + 1) if page not in places]
    problems += _wrong_counts(pool, cached, tables)
    return problems + pool.index.audit({*cached, *tables})


def orphans_returned(pool: BlockPool, sequences: Collection[SequencePages]) -> list[int]:
    """Free the pages that are in no place at all, and return their ids."""
    held = {
        block: [sequence.sequence_id] for sequence in sequences for table in sequence.tables for block in table.held()
    }
    places, _ = _places(pool, list(pool.cached_blocks()), held)
    orphans = [page for page in range(1, pool.num_pages + 1) if page not in places]
    pool.adopt(orphans)
    return orphans


def _places(
    pool: BlockPool, cached: Sequence[KVBlock], tables: dict[KVBlock, list[str]]
) -> tuple[dict[int, str], list[str]]:
    """Where each page is; and the pages that are in two places, in none that exists, or not where the map says."""
    places: dict[int, str] = {}
    problems: list[str] = []

    def place(page: int, where: str, state: PageState, ref_count: int) -> None:
        if not 1 <= page <= pool.num_pages:
            problems.append(f"page {page} in {where} does not exist")
            return
        if page in places:
            problems.append(f"page {page} is in {places[page]} and in {where}")
            return
        places[page] = where
        if (pool.pages.state(page), pool.pages.ref_count(page)) != (state, ref_count):
            problems.append(f"page {page} is in {where}, but the page map shows it as {pool.pages.state(page).name}")

    for page in pool.free_page_ids():
        place(page, "the free list", PageState.FREE, 0)
    for block in cached:
        for page in block.pages:
            place(page, f"cached {block}", PageState.CACHED, 0)
    for block, owners in tables.items():
        for page in block.pages:
            place(page, f"the table of {owners[0]}", PageState.HELD, block.ref_count)
    return places, problems


def _wrong_counts(pool: BlockPool, cached: Sequence[KVBlock], tables: dict[KVBlock, list[str]]) -> list[str]:
    counted_cached, counted_held = [0] * len(pool.cached_pages), [0] * len(pool.held_pages)
    for block in cached:
        counted_cached[block.group] += len(block.pages)
    for block in tables:
        counted_held[block.group] += len(block.pages)
    if (counted_cached, counted_held) == (pool.cached_pages, pool.held_pages):
        return []
    return [f"counted cached {counted_cached}, held {counted_held}; kept {pool.cached_pages}, {pool.held_pages}"]
