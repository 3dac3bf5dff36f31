"""The ledger: where every page is, and the proof that the sums are right.

Reads pool and tables and changes nothing, but for `repair`, which makes the pool agree with the tables. `BlockManager`
offers these as methods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

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
    wasted = [0] * len(groups)
    for block, fill in _partly_filled(block_size, sequences).items():
        wasted[block.group] += (block_size - fill) * len(block.pages)
    return PageUsage(
        total=pool.num_pages,
        free=pool.free_pages,
        groups=tuple(
            GroupUsage(
                name=group.name,
                cached=pool.cached_pages[index],
                held=pool.held_pages[index],
                shared=pool.shared_pages[index],
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
    """Every page at this moment: a copy of the page map, plus a little work per open sequence."""
    columns = pool.pages.copy()
    full = bytes(0 if state == PageState.FREE else block_size for state in range(256))
    fills = bytearray(columns.states.translate(full))
    for block, fill in _partly_filled(block_size, sequences).items():
        for page in block.pages:
            fills[page] = fill
    names = {sequence.handle: sequence.sequence_id for sequence in sequences}
    tables: tuple[bytes, ...] = ()
    ends: tuple[list[int], ...] = ()
    if any(pool.shared_pages):
        by_group = [[sequence.tables[index].page_ids for sequence in sequences] for index in range(len(groups))]
        tables = tuple(b"".join(page_ids) for page_ids in by_group)
        ends = tuple(list(accumulate(map(len, page_ids))) for page_ids in by_group)
    return PageSnapshot(columns, bytes(fills), tuple(group.name for group in groups), names, tables, ends)


def _partly_filled(block_size: int, sequences: Collection[SequencePages]) -> dict[KVBlock, int]:
    """Tokens in the last blocks of every sequence, as far as the holder that wrote most has got."""
    written = {sequence.handle: sequence.num_tokens for sequence in sequences}
    fills: dict[KVBlock, int] = {}
    for sequence in sequences:
        for table in sequence.tables:
            for index in range(max(table.first_held, sequence.num_tokens // block_size), len(table.blocks)):
                block = table.blocks[index]
                if block is None or block in fills:
                    continue
                most = sequence.num_tokens
                if len(block.holders) > 1:
                    most = max(written.get(holder, 0) for holder in block.holders)
                fills[block] = min(block_size, max(0, most - index * block_size))
    return fills


def audit(pool: BlockPool, groups: Sequence[LayerGroup], sequences: Collection[SequencePages]) -> list[str]:
    """Account for every page; returns what is wrong, in words that name the owner, or an empty list."""
    problems: list[str] = []
    tables: dict[KVBlock, list[str]] = {}
    handles: dict[KVBlock, list[int]] = {}
    for sequence in sequences:
        for group, table in zip(groups, sequence.tables, strict=True):
            where = f"{sequence.sequence_id}/{group.name}"
            problems += table.problems(where)
            for block in table.blocks:
                if block is not None:
                    tables.setdefault(block, []).append(where)
                    handles.setdefault(block, []).append(sequence.handle)
        held = sum(len(block.pages) for table in sequence.tables for block in table.blocks if block is not None)
        if held != sequence.held_pages:
            problems.append(f"{sequence.sequence_id} holds {held} pages; kept {sequence.held_pages}")
    for block, owners in tables.items():
        if sorted(block.holders) != sorted(handles[block]):
            problems.append(f"{block} is in the tables of {', '.join(owners)}, but its holders are {block.holders}")
    cached = list(pool.cached_blocks())
    for block in cached:
        if block.holders or block.block_hash is None:
            problems.append(f"{block} is in the free queue")
    places, misplaced = _places(pool, cached, {block: owners[0] for block, owners in tables.items()})
    problems += misplaced
    names = {sequence.handle: sequence.sequence_id for sequence in sequences}
    for page in _missing(pool, places):
        holder = pool.pages.holder(page)
        last = f"; it was last held by sequence {names.get(holder, holder)}" if holder else ""
        problems.append(f"page {page} is nowhere{last}")
    problems += _wrong_counts(pool, cached, tables)
    return problems + pool.index.audit({*cached, *tables})


def repair(pool: BlockPool, sequences: Collection[SequencePages]) -> list[int]:
    """Free the pages that are in no place at all, and return their ids; forget holders and hashes that are gone."""
    handles: dict[KVBlock, set[int]] = {}
    for sequence in sequences:
        for table in sequence.tables:
            for block in table.blocks:
                if block is not None:
                    handles.setdefault(block, set()).add(sequence.handle)
    for block, holders in handles.items():
        if block.holders != holders:
            pool.set_holders(block, holders)
    cached = list(pool.cached_blocks())
    known = {*cached, *handles}
    for block in list(pool.index.blocks()):
        if block not in known:
            pool.index.remove(block, evicted=False)
    places, _ = _places(pool, cached, dict.fromkeys(handles, "a table"))
    orphans = _missing(pool, places)
    pool.adopt(orphans)
    pool.recount(handles)
    return orphans


def _missing(pool: BlockPool, places: dict[int, str]) -> list[int]:
    return [page for page in range(1, pool.num_pages + 1) if page not in places]


def _places(pool: BlockPool, cached: Sequence[KVBlock], tables: dict[KVBlock, str]) -> tuple[dict[int, str], list[str]]:
    """Where each page is; and the pages that are in two places, in none that exists, or not where the map says.

    ``tables`` names one owner of each held block.
    """
    places: dict[int, str] = {}
    problems: list[str] = []

    def place(pages: Iterable[int], where: str, state: PageState, block: KVBlock | None) -> None:
        for page in pages:
            if not 1 <= page <= pool.num_pages:
                problems.append(f"page {page} in {where} does not exist")
            elif page in places:
                problems.append(f"page {page} is in {places[page]} and in {where}")
            else:
                places[page] = where
                problems.extend(pool.pages.problems(page, where, state, block))

    place(pool.free_page_ids(), "the free list", PageState.FREE, None)
    for block in cached:
        place(block.pages, f"cached {block}", PageState.CACHED, block)
    for block, owner in tables.items():
        place(block.pages, f"the table of {owner}", PageState.HELD, block)
    return places, problems


def _wrong_counts(pool: BlockPool, cached: Iterable[KVBlock], held: Iterable[KVBlock]) -> list[str]:
    """Sums that are not what counting gives, by group."""
    counted = {kind: [0] * len(pool.held_pages) for kind in ("cached", "held", "shared")}
    for block in cached:
        counted["cached"][block.group] += len(block.pages)
    for block in held:
        counted["held"][block.group] += len(block.pages)
        if len(block.holders) > 1:
            counted["shared"][block.group] += len(block.pages)
    kept = {"cached": pool.cached_pages, "held": pool.held_pages, "shared": pool.shared_pages}
    problems = [
        f"{kind} pages counted {counted[kind]}, kept {kept[kind]}" for kind in kept if counted[kind] != kept[kind]
    ]
    if sum(counted["cached"]) != pool.available_pages - pool.free_pages:
        problems.append(f"{pool.available_pages - pool.free_pages} pages are said to be evictable: {counted['cached']}")
    return problems
