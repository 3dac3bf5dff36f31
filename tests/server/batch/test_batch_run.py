"""Requests of a batch through an app: each answered once, several at a time, again where a later try may do better."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from engine.client import EngineDied
from server.batch import batch_run
from server.batch.batch_line import BatchLine
from server.batch.batch_run import BatchAnswer, run_batch
from server.http.local_app import LocalApp


def lines(*prompts: str, model: str = "org/tiny") -> Iterator[BatchLine]:
    for prompt in prompts:
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 3}).encode()
        yield BatchLine(prompt, "/v1/completions", body)


async def answers(app: object, requests: Iterator[BatchLine], max_in_flight: int = 4) -> dict[str, BatchAnswer]:
    found: list[BatchAnswer] = []
    await run_batch(LocalApp(app), requests, found.append, max_in_flight)  # type: ignore[arg-type]
    assert len({one.line.custom_id for one in found}) == len(found)
    return {one.line.custom_id: one for one in found}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "LONGEST_PAUSE_SECONDS", 0.0)


async def test_every_request_has_an_answer_and_its_id(app, engine) -> None:
    found = await answers(app, lines(*"abcdefg"))
    assert sorted(found) == list("abcdefg")
    for one in found.values():
        body = json.loads(one.body)
        assert (one.status, one.request_id) == (200, body["id"])
        assert body["choices"][0]["text"] == "abc"
    assert len(engine.requests) == 7


async def test_a_bad_request_is_answered_once_and_fails_alone(app, engine) -> None:
    wrong = BatchLine("bad", "/v1/completions", b'{"model":"org/tiny","prompt":""}')
    found = await answers(app, iter([*lines("a"), wrong, *lines("b")]))
    assert {name: one.status for name, one in found.items()} == {"a": 200, "bad": 400, "b": 200}
    assert len(engine.requests) == 2


async def test_an_engine_that_died_is_asked_again(app, engine) -> None:
    engine.scripts.append([EngineDied("it is dead")])
    engine.answer("xyz")
    found = await answers(app, lines("a"))
    assert json.loads(found["a"].body)["choices"][0]["text"] == "xyz"
    assert len(engine.requests) == 2


async def test_a_full_queue_is_asked_again_a_bounded_number_of_times(app, engine) -> None:
    engine.scripts += [[engine.failure("queue_full", retry_after=5.0)] for _ in range(batch_run.MAX_TRIES + 3)]
    found = await answers(app, lines("a"))
    assert found["a"].status == 429
    assert len(engine.requests) == batch_run.MAX_TRIES


async def test_no_more_are_in_flight_than_asked() -> None:
    running = most = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        running -= 1

    assert len(await answers(app, lines(*"abcdefghij"), max_in_flight=3)) == 10
    assert most == 3


async def test_an_answer_that_cannot_be_written_ends_the_run(app, engine) -> None:
    def fail(answer: BatchAnswer) -> None:
        raise OSError("disk full")

    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="disk full")):
        await run_batch(LocalApp(app), lines(*"abc"), fail, 1)
    assert len(engine.requests) == 1
