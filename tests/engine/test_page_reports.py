"""Page reports: what is told of pages and sequences is what a look at the block manager shows, at the same moment."""

from __future__ import annotations

import random
import statistics
import time
from array import array

import pytest

from block_manager.page_map import PageState
from engine.channel import decode_from_engine, encode_message
from engine.grammar_compiler import GrammarCompiler
from engine.grammar_queue import GrammarQueue
from engine.page_messages import PageRow, PagesRead, SequenceRow
from engine.page_reports import MAX_WAITING_ROWS, read_page, read_pages, read_sequence
from scheduler.preemption_record import PreemptionKind
from scheduler.request import RequestStatus, WaitReason
from tests.scheduler.conftest import Simulation


@pytest.fixture
def grammars() -> GrammarQueue:
    return GrammarQueue(GrammarCompiler(1000, frozenset({0})))


def busy(**settings: object) -> Simulation:
    """Three samples of a prompt with a shared, partly filled page, and others of which some wait; windows are passed.

    Something is cached, too.
    """
    sim = Simulation(num_pages=60, block_size=4, budget=24, windows=[None, 8, 8], max_num_seqs=6, **settings)
    sim.add("gone", 30, 2)
    sim.run()
    sim.now = 7.0
    sim.add("family", 22, 60, num_samples=3, tenant="x")
    sim.add("alone", 9, 60, tenant="y")
    for number in range(4):
        sim.add(f"late {number}", 30, 20, num_samples=2)
    sim.now = 7.5
    for _ in range(3):
        sim.step()
    sim.now = 9.0
    return sim


def columns(read: PagesRead) -> tuple[array[int], array[int]]:
    ref_counts, holders = array("H"), array("I")
    ref_counts.frombytes(read.ref_counts)
    holders.frombytes(read.holders)
    return ref_counts, holders


def check_against_snapshot(sim: Simulation, grammars: GrammarQueue) -> None:
    read = read_pages(1, sim.scheduler, grammars)
    snapshot = sim.blocks.snapshot()
    ref_counts, holders = columns(read)
    handles = {row.handle: row.request_id for row in read.sequences if row.handle}
    rows = sim.blocks.pool.num_pages + 1
    assert [len(one) for one in (read.states, read.groups, read.fills, ref_counts, holders)] == [rows] * 5
    for page in range(1, rows):
        row = snapshot.row(page)
        assert read.states[page] == row.state
        assert row.group is None or read.group_names[read.groups[page]] == row.group
        assert (read.fills[page], ref_counts[page]) == (row.fill, row.ref_count)
        assert handles[holders[page]] in row.owners if row.owners else holders[page] == 0
        told = read_page(sim.scheduler, page)
        assert told is not None
        assert (told.page, told.state, told.group) == (page, row.state.name.lower(), row.group)
        assert (tuple(told.owners), told.ref_count, told.fill) == (row.owners, row.ref_count, row.fill)
        assert int(told.hash_prefix or "0", 16) == row.hash_prefix
        age = None if row.last_used is None else sim.now - row.last_used
        assert told.cached_seconds == age
    held = sum(row.held_pages for row in read.sequences)
    assert held == sum(ref_counts)
    for row in read.sequences:
        if row.status is RequestStatus.RUNNING:
            report = read_sequence(sim.scheduler, grammars, row.request_id)
            assert report is not None
            pages = [page for group in report.pages.values() for page in group]
            assert len(pages) == row.held_pages
            assert all(row.request_id in snapshot.row(page).owners for page in pages)


def test_columns_agree_with_a_snapshot_of_shared_windowed_and_partly_filled_pages(grammars: GrammarQueue) -> None:
    sim = busy()
    read = read_pages(1, sim.scheduler, grammars)
    ref_counts, _ = columns(read)
    assert {PageState(state) for state in read.states[1:]} == set(PageState)
    assert read.group_names == ["full", "sliding_8"]
    assert max(ref_counts) == 3
    assert set(read.fills) > {0, 4}, "some are partly filled"
    check_against_snapshot(sim, grammars)


@pytest.mark.parametrize("depth", [0, 1])
def test_columns_agree_at_every_step_of_a_random_load(grammars: GrammarQueue, depth: int) -> None:
    source = random.Random(depth)
    sim = Simulation(
        num_pages=40,
        block_size=4,
        windows=[None, 6],
        max_num_seqs=5,
        depth=depth,
        num_host_pages=20,
        watermark_tokens=0,
    )
    for number in range(14):
        length = source.choice([5, 17, 30])
        sim.add(f"r{number}", [1] * length, source.randrange(1, 40), num_samples=source.choice([1, 1, 2, 3]))
    leavers = 0
    while sim.scheduler.has_work or sim.under_way:
        sim.step()
        sim.now += 0.5
        check_against_snapshot(sim, grammars)
        open_ones = [name for name in sim.requests if name not in sim.reasons]
        if open_ones and source.random() < 0.05:
            sim.abort(source.choice(open_ones))
            check_against_snapshot(sim, grammars)
            rows = read_pages(1, sim.scheduler, grammars).sequences
            leavers += any(row.status is RequestStatus.FINISHED for row in rows)
    assert sim.scheduler.counters.num_preemptions > 0
    assert (leavers > 0) == (depth > 0), "the pages of one that left are read by a step under way"


def test_there_is_no_null_page_and_none_behind_the_last() -> None:
    sim = busy()
    assert [read_page(sim.scheduler, page) for page in (-1, 0, 61)] == [None] * 3
    assert read_page(sim.scheduler, 60) == PageRow(
        page=60, state="free", group=None, owners=[], ref_count=0, fill=0, hash_prefix="", cached_seconds=None
    )


def test_sequences_are_all_that_run_and_then_those_that_wait_in_expected_order(grammars: GrammarQueue) -> None:
    sim = busy()
    read = read_pages(3, sim.scheduler, grammars)
    assert read.query_id == 3
    rows = {row.request_id: row for row in read.sequences}
    assert [row.request_id for row in read.sequences][: len(sim.running)] == sim.running
    assert read.num_sequences == len(rows) == len(read.sequences) == 12
    table = sim.blocks.sequences["family/1"]
    assert rows["family/1"] == SequenceRow(
        handle=table.handle,
        request_id="family/1",
        tenant="x",
        status=RequestStatus.RUNNING,
        seconds_since_arrival=2.0,
        num_prompt_tokens=22,
        num_computed_tokens=sim.requests["family/1"].num_computed_tokens,
        num_output_tokens=len(sim.outputs["family/1"]),
        held_pages=table.held_pages,
        num_preemptions=0,
        wait_reason=None,
        position=None,
    )
    waiting = [row for row in read.sequences if row.status is RequestStatus.WAITING]
    assert [(row.request_id, row.position) for row in waiting] == [
        (name, place) for place, name in enumerate(sim.waiting, 1)
    ]
    assert {row.wait_reason for row in waiting} <= {WaitReason.SEQUENCES, WaitReason.PAGES, WaitReason.BEHIND}
    assert all(row.handle == row.held_pages == 0 for row in waiting)
    pending = rows[f"{waiting[-1].request_id}/1"]
    assert (pending.status, pending.position, pending.wait_reason) == (RequestStatus.PENDING, None, None)


def test_only_the_first_two_hundred_that_wait_are_told(grammars: GrammarQueue) -> None:
    sim = Simulation(num_pages=20, max_num_seqs=1)
    for number in range(300):
        sim.add(f"r{number}", 3, 2)
    sim.step()
    read = read_pages(1, sim.scheduler, grammars)
    assert len(read.sequences) == 1 + MAX_WAITING_ROWS
    assert read.num_sequences == 300
    assert [row.position for row in read.sequences[1:]] == list(range(1, MAX_WAITING_ROWS + 1))
    assert [row.request_id for row in read.sequences[:2]] == ["r0", "r1"]


def test_a_running_sequence_tells_its_pages_in_order_and_what_it_has_cost(grammars: GrammarQueue) -> None:
    sim = busy()
    report = read_sequence(sim.scheduler, grammars, "alone")
    assert report is not None
    full, sliding = sim.blocks.block_tables("alone")
    assert report.pages == {
        "full": [page for block in full for page in block],
        "sliding_8": [page for block in sliding for page in block if page],
    }
    assert 0 in sliding[0], "its window has moved on"
    ledger = sim.scheduler.ledger("alone")
    assert report.ledger.page_seconds == ledger.page_seconds > 0.0
    assert report.ledger.peak_pages == ledger.peak_pages > 0
    assert (report.ledger.queue_seconds, report.ledger.prefill_seconds, report.ledger.decode_seconds) == (0.5, 0.0, 1.5)
    assert report.explanation.status is RequestStatus.RUNNING
    assert report.explanation.num_tokens == 9 + len(sim.outputs["alone"])


def test_waiting_and_pending_sequences_have_no_pages_but_a_reason_and_a_ledger(grammars: GrammarQueue) -> None:
    sim = busy()
    name = sim.waiting[0]
    waits, pends = (read_sequence(sim.scheduler, grammars, one) for one in (name, f"{name}/1"))
    assert waits is not None
    assert pends is not None
    assert waits.pages == pends.pages == {"full": [], "sliding_8": []}
    assert (waits.explanation.status, waits.explanation.position) == (RequestStatus.WAITING, 1)
    assert pends.explanation.status is RequestStatus.PENDING
    for report in (waits, pends):
        assert (report.ledger.queue_seconds, report.ledger.prefill_seconds) == (2.0, None)
    assert read_sequence(sim.scheduler, grammars, "gone") is None


def test_a_swapped_sequence_has_a_preemption_and_no_pages(grammars: GrammarQueue) -> None:
    sim = Simulation(num_pages=6, budget=64, num_host_pages=20, watermark_tokens=0, seconds_per_page=0.0)
    sim.add("old", 30, 40)
    sim.add("new", 30, 40)
    while not sim.blocks.swapped:
        sim.step()
        sim.now += 0.25
    report = read_sequence(sim.scheduler, grammars, "new")
    assert report is not None
    assert report.pages == {"full": []}
    [note] = report.ledger.preemptions
    assert (note.kind, note.requester) == (PreemptionKind.SWAP.value, "old")
    assert note.seconds == sim.requests["new"].ledger.preemptions[0].at > 0.0
    assert report.explanation.preemptions == report.ledger.preemptions
    assert report.ledger.decode_seconds == sim.now
    assert report.explanation.num_computed_tokens > 30


@pytest.mark.alone
def test_a_hundred_thousand_pages_and_64_sequences_cost_less_than_ten_milliseconds(grammars: GrammarQueue) -> None:
    sim = Simulation(
        num_pages=100_000,
        max_num_seqs=64,
        budget=100_000,
        windows=[None, 512],
        max_queued_tokens=10**8,
        max_queued_requests=10**4,
    )
    scheduler = sim.scheduler
    shared = [1] * 4_000
    for number in range(64):
        sim.add(f"r{number}", shared + [number] * 5_000, 50)
    for number in range(300):
        sim.add(f"w{number}", [number] * 100, 50)
    while len(scheduler.running) < 64:
        batch = scheduler.schedule()
        scheduler.update(batch, {name: 1 for share in batch.requests for name in share.sequence_ids if share.samples})
    times = []
    for _ in range(9):
        before = time.thread_time()
        body = encode_message(read_pages(1, scheduler, grammars))
        times.append(time.thread_time() - before)
    assert statistics.median(times) < 0.010
    read = decode_from_engine(body)
    assert isinstance(read, PagesRead)
    assert len(read.sequences) == 64 + MAX_WAITING_ROWS
    assert len(body) < 1_000_000
    assert max(columns(read)[0]) > 1
