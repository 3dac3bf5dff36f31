"""Clients that leave. Ids like H01 name cases known from other servers."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from engine.sampling_params import Grammar, GrammarKind
from scheduler.request import FinishReason
from server.grammar_checker import MOST_AT_ONCE
from server.http.disconnect import ClientDisconnected, unless_disconnected


def body(api, **fields) -> bytes:
    return orjson.dumps({"model": api.model, "prompt": "hi"} | fields)


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_h01_a_client_that_leaves_a_plain_request_aborts_it(api, engine) -> None:
    engine.scripts.append([asyncio.Event()])
    leave = asyncio.Event()
    messages = api.raw("/v1/completions", body(api), leave)
    answering = asyncio.create_task(anext(messages))
    await until(lambda: engine.num_in_flight == 1)
    leave.set()
    assert (await answering)["status"] == 499
    assert engine.aborted == [engine.requests[0].request_id]
    assert engine.num_in_flight == 0
    assert await api.outcomes() == {"abort": 1}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "hi", "guided_json": {}}),
        ("/v1/completions", {"prompt": "hi", "guided_json": {}, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "guided_json": {}}),
        ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}),
    ],
)
async def test_a_client_that_leaves_while_its_grammar_is_tried_holds_up_no_other_grammar(
    api, engine, monkeypatch, path, fields
) -> None:
    tried = []

    async def endless(grammar: Grammar) -> str | None:
        tried.append(grammar)
        if grammar.kind is GrammarKind.JSON_SCHEMA:
            await asyncio.Event().wait()
        return None

    monkeypatch.setattr("server.grammar_checker._check", endless)
    leave = asyncio.Event()
    raw = orjson.dumps({"model": api.model, **fields})
    answers = [asyncio.create_task(anext(api.raw(path, raw, leave))) for _ in range(MOST_AT_ONCE + 1)]
    await until(lambda: len(tried) == MOST_AT_ONCE)
    engine.answer("ab", FinishReason.STOP)
    other = asyncio.create_task(api.completion(guided_regex="ab"))
    leave.set()
    async with asyncio.timeout(10):
        assert [(await answer)["status"] for answer in answers] == [499] * len(answers)
        assert (await other).json()["choices"][0]["text"] == "ab"
    assert len(engine.requests) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_client_that_leaves_while_it_sends_its_body_ends_quietly(api, engine, path) -> None:
    leave = asyncio.Event()
    leave.set()
    [start, _] = [message async for message in api.raw(path, b'{"model": "', leave, whole=False)]
    assert start["status"] == 499
    assert engine.requests == []


async def test_h01_all_prompts_of_a_plain_request_are_aborted(api, engine) -> None:
    engine.scripts += [[asyncio.Event()], [asyncio.Event()], [asyncio.Event()]]
    leave = asyncio.Event()
    messages = api.raw("/v1/completions", body(api, prompt=["a", "b", "c"]), leave)
    answering = asyncio.create_task(anext(messages))
    await until(lambda: engine.num_in_flight == 3)
    leave.set()
    await answering
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert await api.outcomes() == {"abort": 3}


async def test_h03_a_client_that_leaves_before_the_first_byte_of_a_stream_aborts_it(api, engine) -> None:
    engine.scripts.append([asyncio.Event()])
    leave = asyncio.Event()
    messages = api.raw("/v1/completions", body(api, stream=True), leave)
    answering = asyncio.create_task(anext(messages))
    await until(lambda: engine.num_in_flight == 1)
    leave.set()
    assert (await answering)["status"] == 499
    assert engine.aborted == [engine.requests[0].request_id]
    assert await api.outcomes() == {"abort": 1}


@pytest.mark.parametrize("prompt", ["hi", ["hi", "yo"]])
async def test_h02_a_client_that_leaves_a_silent_stream_aborts_it(api, engine, prompt) -> None:
    num_prompts = 1 if prompt == "hi" else 2
    for _ in range(num_prompts):
        engine.answer("ab", None).append(asyncio.Event())
    leave = asyncio.Event()
    received = []
    async for message in api.raw("/v1/completions", body(api, prompt=prompt, stream=True), leave):
        received.append(message)
        if len(received) == 1 + 2 * num_prompts:  # the status line and every chunk there will be
            assert engine.aborted == []
            leave.set()
    assert received[0]["status"] == 200
    assert not any(b"[DONE]" in message.get("body", b"") for message in received)
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert engine.num_in_flight == 0
    assert await api.outcomes() == {"abort": num_prompts}


async def test_h07_a_stream_that_ends_by_itself_aborts_nothing(api, engine) -> None:
    for _ in range(3):
        await api.completion(stream=True)
        await api.completion()
    assert engine.aborted == []
    assert await api.outcomes() == {"length": 6}


async def test_work_has_ended_when_the_disconnect_is_reported() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnected):
        await unless_disconnected(receive, work())
    assert ended == [True]


async def test_the_result_of_finished_work_is_returned_though_the_client_stays() -> None:
    async def work() -> int:
        return 5

    async def receive():
        await asyncio.Event().wait()

    assert await unless_disconnected(receive, work()) == 5


async def test_a_cancelled_request_cancels_its_work() -> None:
    started, ended = asyncio.Event(), []

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def receive():
        await asyncio.Event().wait()

    request = asyncio.create_task(unless_disconnected(receive, work()))
    await started.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert ended == [True]
