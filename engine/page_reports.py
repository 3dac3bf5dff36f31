"""Page reports: every page, one page or one sequence as messages, as of one moment between two steps."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from itertools import islice

from block_manager.block import NULL_PAGE
from block_manager.page_map import PageState
from engine.grammar_queue import GrammarQueue
from engine.messages import SequenceReport
from engine.page_messages import PageRow, PagesRead, SequenceRow
from engine.reports import grammar_ledger, ledger_report, request_explanation
from scheduler.request import Request, RequestStatus
from scheduler.scheduler import Scheduler

MAX_WAITING_ROWS = 200


def read_pages(query_id: int, scheduler: Scheduler, grammars: GrammarQueue) -> PagesRead:
    """Every page, and the sequences: all that run, then the first that wait, in the order they are expected to start.

    Sequences that ended, but whose pages a step under way reads, are FINISHED. Copies columns; makes objects only for
    sequences.
    """
    snapshot = scheduler.blocks.snapshot()
    columns = snapshot.columns
    return PagesRead(
        query_id=query_id,
        group_names=list(snapshot.group_names),
        states=columns.states,
        groups=columns.groups,
        fills=snapshot.fills,
        ref_counts=_little_endian(columns.ref_counts),
        holders=_little_endian(columns.holders),
        sequences=_sequences(scheduler, grammars),
        num_sequences=scheduler.num_sequences + grammars.num_sequences,
    )


def read_page(scheduler: Scheduler, page: int) -> PageRow | None:
    """One page; None for the null page, and where there is none of that number."""
    blocks = scheduler.blocks
    if not NULL_PAGE < page <= blocks.pool.num_pages:
        return None
    row = blocks.snapshot().row(page)
    return PageRow(
        page=page,
        state=row.state.name.lower(),
        group=row.group,
        owners=list(row.owners),
        ref_count=row.ref_count,
        fill=row.fill,
        hash_prefix=f"{row.hash_prefix:08x}" if row.hash_prefix else "",
        cached_seconds=blocks.cached_seconds(page) if row.state is PageState.CACHED else None,
    )


def read_sequence(scheduler: Scheduler, grammars: GrammarQueue, request_id: str) -> SequenceReport | None:
    """One sequence, whether it runs or waits; None when it is not known, or no longer."""
    names = [group.name for group in scheduler.blocks.groups]
    explanation = scheduler.explain(request_id)
    if explanation is None:
        waiting = grammars.explain(request_id)
        if waiting is None:
            return None
        ledger = grammar_ledger(waiting.seconds_since_arrival)
        return SequenceReport(explanation=waiting, ledger=ledger, pages={name: [] for name in names})
    pages: dict[str, list[int]] = {name: [] for name in names}
    if explanation.status is RequestStatus.RUNNING:
        for name, table in zip(names, scheduler.blocks.block_tables(request_id), strict=True):
            pages[name] = [page for block in table for page in block if page != NULL_PAGE]
    return SequenceReport(
        explanation=request_explanation(explanation),
        ledger=ledger_report(scheduler.ledger(request_id), scheduler.now()),
        pages=pages,
    )


def _sequences(scheduler: Scheduler, grammars: GrammarQueue) -> list[SequenceRow]:
    now = scheduler.now()
    rows = [_row(scheduler, now, member, None) for request in scheduler.running for member in request.family]
    rows += [_row(scheduler, now, request, None) for request in scheduler.running.leaving]
    rows += islice(_waiting_rows(scheduler, grammars, now), MAX_WAITING_ROWS)
    return rows


def _waiting_rows(scheduler: Scheduler, grammars: GrammarQueue, now: float) -> Iterator[SequenceRow]:
    for position, request in enumerate(scheduler.waiting.expected(), 1):
        for member in request.family:
            yield _row(scheduler, now, member, position if member is request else None)
    yield from grammars.rows()


def _row(scheduler: Scheduler, now: float, request: Request, position: int | None) -> SequenceRow:
    table = scheduler.blocks.sequences.get(request.request_id)
    return SequenceRow(
        handle=0 if table is None else table.handle,
        request_id=request.request_id,
        tenant=request.tenant,
        status=request.status,
        seconds_since_arrival=now - request.arrived,
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_output_tokens=request.num_output_tokens,
        held_pages=0 if table is None else table.held_pages,
        num_preemptions=request.num_preemptions,
        wait_reason=None if position is None else scheduler.planner.wait_reason(request),
        position=position,
    )


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
