"""Who watches sees every page, as it is now; nobody else pays for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.client import EngineDied, EngineState
from engine.messages import PreemptionCount
from engine.page_messages import SequenceRow
from scheduler.request import RequestStatus, WaitReason
from server.dashboard.page_map_feed import PageMapFeed
from server.errors import ApiError
from server.http.request_id import RequestId
from server.request_registry import InFlightRequest


def filled(engine: Any, num_pages: int, *held: int) -> Any:
    """Pages of which those are held."""
    states = bytearray(num_pages + 1)
    references = bytearray(2 * (num_pages + 1))
    for page in held:
        states[page] = 2
        references[2 * page] = 1
    return engine.make_pages_read(num_pages, states=bytes(states), ref_counts=bytes(references))


def row(name: str, **changes: Any) -> SequenceRow:
    fields: dict[str, Any] = {
        "handle": 3,
        "request_id": name,
        "tenant": "key-1",
        "status": RequestStatus.RUNNING,
        "seconds_since_arrival": 1.23456,
        "num_prompt_tokens": 20,
        "num_computed_tokens": 24,
        "num_output_tokens": 5,
        "held_pages": 2,
        "num_preemptions": 1,
        "wait_reason": None,
        "position": None,
    }
    return SequenceRow(**(fields | changes))


async def test_the_first_thing_told_is_the_layout_then_every_page_then_who_and_how_much(watch, engine) -> None:
    engine.pages = filled(engine, 300, 1, 300)
    events = await watch().read()
    assert [name for name, _ in events] == ["layout", "pages", "pages", "requests", "stats"]
    version = events[0][1].pop("version")
    assert isinstance(version, str)
    assert events[0][1] == {
        "model": "tiny",
        "num_pages": 20,
        "block_size": 16,
        "page_bytes": 1024,
        "groups": ["full"],
        "chunk": 256,
        "max_model_len": 512,
        "device": "cpu",
        "tick_seconds": 0,
    }
    assert [body["first"] for name, body in events if name == "pages"] == [1, 257]


async def test_every_page_is_told_with_its_cell(watch, engine) -> None:
    engine.pages = filled(engine, 300, 1, 300)
    watching = watch()
    await watching.read()
    assert sorted(watching.cells) == list(range(1, 301))
    assert [page for page, cell in watching.cells.items() if cell[0] == 2] == [1, 300]


async def test_later_only_what_changed_is_told_again(watch, engine) -> None:
    engine.pages = filled(engine, 600)
    watching = watch()
    await watching.read()
    assert [name for name, _ in await watching.read()] == ["requests", "stats"]
    engine.pages = filled(engine, 600, 257)
    firsts = [body["first"] for name, body in await watching.until("pages") if name == "pages"]
    assert firsts == [257]


async def test_numbers_of_pages_are_those_of_the_cells(watch, engine) -> None:
    engine.pages = filled(engine, 20, 2, 3, 4)
    engine.measured = engine.make_stats(pages_free=20)  # of another moment
    events = dict(await watch().read())
    assert events["stats"]["pages"] == {"free": 17, "cached": 0, "held": 3, "shared": 0, "total": 20}


async def test_statistics_are_counters_and_ratios_a_page_can_draw(watch, engine) -> None:
    engine.measured = engine.make_stats(
        groups=[
            engine.make_group("full", held=2, held_slots=32, wasted_slots=8, evicted=3),
            engine.make_group("window", cached=1, shared=1, evicted=4),
        ],
        host_pages_total=5,
        host_pages_free=3,
        host_pages_swapped=2,
        running=1,
        waiting=2,
        waiting_by_reason={"pages": 2},
        queued_tokens=40,
        exhaustion_seconds=9.5,
        prompt_tokens=100,
        cached_prompt_tokens=30,
        recomputed_tokens=10,
        generation_tokens=50,
        preemptions=[
            PreemptionCount(kind="swap", cause="decode", count=1),
            PreemptionCount(kind="recompute", cause="decode", count=2),
        ],
        steps=7,
        step_seconds=0.5,
    )
    stats = dict(await watch().read())["stats"]
    assert stats.pop("time") > 1_700_000_000
    del stats["pages"]
    assert stats == {
        "groups": [
            {"name": "full", "cached": 0, "held": 2, "shared": 0, "wasted_ratio": 0.25},
            {"name": "window", "cached": 1, "held": 0, "shared": 1, "wasted_ratio": 0.0},
        ],
        "wasted_ratio": 0.25,
        "host": {"total": 5, "free": 3, "swapped": 2},
        "running": 1,
        "waiting": 2,
        "waiting_by_reason": {"pages": 2},
        "queued_tokens": 40,
        "exhaustion_seconds": 9.5,
        "prompt_tokens": 100,
        "cached_tokens": 30,
        "recomputed_tokens": 10,
        "generation_tokens": 50,
        "preemptions": 3,
        "evicted_pages": 7,
        "steps": 7,
        "step_seconds": 0.5,
        "engine": "ready",
    }


async def test_a_sequence_is_told_by_its_own_id_and_by_what_its_client_calls_it(watch, engine, registry) -> None:
    waiting = row(
        "cmpl-2-0-0", handle=0, status=RequestStatus.WAITING, wait_reason=WaitReason.PAGES, position=1, held_pages=0
    )
    engine.pages = engine.make_pages_read(sequences=[row("cmpl-1-0-1"), waiting], num_sequences=9)
    request = InFlightRequest(
        request_id=RequestId("cmpl-1", "job-5"), tenant="key-1", arrived=0.0, sequence_ids=["cmpl-1-0-0", "cmpl-1-0-1"]
    )
    with registry.holding(request):
        told = dict(await watch().read())["requests"]
    assert told["total"] == 9
    assert told["sequences"][0] == {
        "handle": 3,
        "id": "cmpl-1-0-1",
        "request_id": "job-5",
        "tenant": "key-1",
        "status": "running",
        "age_seconds": 1.235,
        "prompt_tokens": 20,
        "computed_tokens": 24,
        "output_tokens": 5,
        "pages": 2,
        "preemptions": 1,
        "wait_reason": None,
        "position": None,
    }
    shown = {name: told["sequences"][1][name] for name in ("id", "request_id", "status", "wait_reason", "position")}
    assert shown == {
        "id": "cmpl-2-0-0", "request_id": "cmpl-2-0-0", "status": "waiting", "wait_reason": "pages", "position": 1,
    }  # fmt: skip


# ---- who watches


async def test_nobody_looks_while_nobody_watches(watch, feed: PageMapFeed, engine) -> None:
    assert not feed.is_polling
    watching = watch()
    await watching.read()
    assert feed.is_polling
    await watching.pieces.aclose()
    assert not feed.is_polling
    looks = engine.num_reads
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.num_reads == looks


async def test_one_looks_for_all(watch, engine, feed: PageMapFeed) -> None:
    feed._tick_seconds = 1000
    for _ in range(3):
        await watch().read()
    assert engine.num_reads == 1


async def test_who_comes_later_is_told_everything_at_once(watch, feed: PageMapFeed, engine) -> None:
    engine.pages = filled(engine, 600, 5)
    first, second = watch(), watch()
    await first.read()
    engine.pages = filled(engine, 600, 6)
    await first.until("pages")
    events = await second.read()
    assert [name for name, _ in events] == ["layout", "pages", "pages", "pages", "requests", "stats"]
    assert second.cells == first.cells


async def test_who_reads_slowly_gets_the_latest_state_and_nothing_twice(watch, engine) -> None:
    slow, quick = watch(), watch()
    engine.pages = filled(engine, 1000)
    await slow.read()
    await quick.read()
    for page in (1, 300, 301, 302):
        engine.pages = filled(engine, 1000, page)
        await quick.until("pages")
    events = await slow.read()
    assert [body["first"] for name, body in events if name == "pages"] == [1, 257]
    assert slow.cells == quick.cells
    assert [name for name, _ in await slow.read()] == ["requests", "stats"]


async def test_more_than_may_watch_are_sent_away_until_one_leaves(watch, feed: PageMapFeed) -> None:
    watchers = [watch() for _ in range(3)]
    for watching in watchers:
        await watching.read()
    with pytest.raises(ApiError) as refused:
        await watch().read()
    assert (refused.value.status, refused.value.code) == (503, "too_many_watchers")
    assert feed.num_watchers == 3
    await watchers[0].pieces.aclose()
    assert (await watch().read())[0][0] == "layout"


async def test_a_bug_ends_the_feed_instead_of_silencing_it(watch, engine, feed: PageMapFeed) -> None:
    watching = watch()
    await watching.read()
    engine.pages = None
    with pytest.raises(AttributeError):
        await watching.until("engine")
    assert feed.num_watchers == 0


# ---- an engine that does not answer


async def test_while_the_engine_starts_its_state_is_told(watch, engine) -> None:
    engine.state = EngineState.STARTING
    watching = watch()
    assert await watching.read() == [("engine", {"state": "starting"})]
    engine.state = EngineState.READY
    assert (await watching.until("stats"))[0][0] == "layout"


async def test_after_a_restart_there_is_a_new_layout_and_every_page_again(watch, engine) -> None:
    engine.pages = filled(engine, 600, 5)
    watching = watch()
    await watching.read()
    engine.state = EngineState.RESTARTING
    assert [body for name, body in await watching.until("engine") if name == "engine"] == [{"state": "restarting"}]
    engine._become_ready(engine.make_ready(num_pages=40))
    engine.pages = filled(engine, 40)
    events = await watching.until("stats")
    assert [name for name, _ in events] == ["layout", "pages", "requests", "stats"]
    assert events[0][1]["num_pages"] == 40


async def test_an_engine_that_stays_away_for_good_is_told_as_failed(watch, engine) -> None:
    watching = watch()
    await watching.read()
    engine.state = EngineState.FAILED
    assert (await watching.until("engine"))[-1] == ("engine", {"state": "failed"})


@pytest.mark.parametrize("death", [False, True])
async def test_a_long_silence_is_told_and_asked_about_once(watch, feed: PageMapFeed, engine, death: bool) -> None:
    feed._silence_seconds = 0.0
    answer = asyncio.Event()
    asked = 0
    reading = engine.read_pages

    async def read_pages() -> Any:
        nonlocal asked
        asked += 1
        await answer.wait()
        if death:
            engine.state = EngineState.RESTARTING
            raise EngineDied("it died")
        return await reading()

    engine.read_pages = read_pages
    watching = watch()
    for _ in range(3):
        assert await watching.read() == [("engine", {"state": "silent"})]
    assert asked == 1
    feed._silence_seconds = 1000.0
    answer.set()
    events = await watching.read()
    while events == [("engine", {"state": "silent"})]:
        events = await watching.read()
    assert [name for name, _ in events] == (["engine"] if death else ["layout", "pages", "requests", "stats"])
    assert not death or events == [("engine", {"state": "restarting"})]


# ---- the end


async def test_when_the_server_ends_everybody_is_told_and_nobody_looks_any_more(watch, feed: PageMapFeed) -> None:
    first, second = watch(), watch()
    await first.read()
    await second.read()
    feed.close()
    assert not feed.is_polling
    for watching in (first, second):
        assert await watching.until("engine") == [("engine", {"state": "closed"})]
        with pytest.raises(StopAsyncIteration):
            await watching.read()
    assert feed.num_watchers == 0


async def test_who_comes_after_the_end_is_told_so(watch, feed: PageMapFeed) -> None:
    feed.close()
    watching = watch()
    assert await watching.read() == [("engine", {"state": "closed"})]
    with pytest.raises(StopAsyncIteration):
        await watching.read()
    assert not feed.is_polling
