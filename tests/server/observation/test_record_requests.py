"""What is recorded of API requests, seen by an observer of a server over a scripted engine."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from engine.client import EngineDied
from scheduler.request import FinishReason
from server.app import create_app
from server.auth import ApiKeys
from server.observation.request_record import Outcome, RequestRecord


class Seen(list[RequestRecord]):
    """Keeps what it is told."""

    def finished(self, record: RequestRecord) -> None:
        self.append(record)

    def close(self) -> None:
        pass


@pytest.fixture
def seen(state) -> Seen:
    seen = Seen()
    state.journal.add(seen)
    return seen


def told(record: RequestRecord) -> dict[str, Any]:
    return {
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "error": record.error_code,
    }


async def test_an_answered_request_is_recorded_once_with_what_it_was(api, engine, seen) -> None:
    engine.answer("hello", cached=1, ledger=engine.make_ledger(cached_tokens=1))
    response = await api.completion(max_tokens=5)
    [record] = seen
    assert told(record) == {
        "method": "POST", "route": "/v1/completions", "status": 200, "outcome": Outcome.LENGTH, "error": None,
    }  # fmt: skip
    assert record.own_id == record.shown_id == response.json()["id"]
    assert (record.model, record.streams, record.tenant) == (api.model, False, "")
    usage = record.progress.usage
    assert (usage.prompt_tokens, usage.completion_tokens, record.cached_tokens) == (2, 5, 1)
    assert [one.finish_reason for one in record.sequences.values()] == [FinishReason.LENGTH]
    assert (record.queue_seconds, record.prefill_seconds, record.decode_seconds) == (0.125, 0.25, 0.625)
    assert 0 < record.first_token_seconds < record.total_seconds


async def test_a_request_of_several_sequences_has_the_ledger_of_each(api, engine, seen) -> None:
    for pages, decode in ((3, 2.0), (4, 1.0)):
        engine.answer("ab", ledger=engine.make_ledger(peak_pages=pages, decode_seconds=decode, prefill_seconds=None))
    await api.chat(n=2, max_tokens=2, stream=True)
    [record] = seen
    assert record.streams
    assert [one.peak_pages for one in record.ledgers] == [3, 4]
    assert list(record.sequences) == [f"{record.own_id}-0-0", f"{record.own_id}-0-1"]
    assert (record.prefill_seconds, record.decode_seconds) == (None, 2.0)


async def test_the_clients_own_id_and_its_key_are_told_by_name(api, engine, state) -> None:
    state.api_keys = ApiKeys(("first-key", "second-key"))
    seen = Seen()
    state.journal.add(seen)
    guarded = type(api)(create_app(state), state)
    headers = {"authorization": "Bearer second-key", "x-request-id": "mine"}
    await guarded.http.post("/v1/completions", json={"model": api.model, "prompt": "hi"}, headers=headers)
    await guarded.http.post("/v1/completions", json={"model": "other", "prompt": "hi"}, headers=headers)
    await guarded.http.post("/v1/completions", json={"model": api.model, "prompt": "hi"})
    await guarded.http.get("/v1/models", headers={"x-api-key": "first-key"})
    await guarded.http.aclose()
    assert [(one.shown_id, one.tenant, one.status, one.route) for one in seen] == [
        ("mine", "key-2", 200, "/v1/completions"),
        ("mine", "key-2", 404, "/v1/completions"),
        (None, "", 401, "/v1/completions"),
        (None, "key-1", 200, "/v1/models"),
    ]
    assert [one.error_code for one in seen] == [None, "model_not_found", "invalid_api_key", None]
    assert seen[0].own_id.startswith("cmpl-")


async def test_a_sequence_that_a_stop_string_ended_has_the_ledger_of_its_abort(api, engine, seen) -> None:
    engine.abort_ledger = engine.make_ledger(peak_pages=9)
    engine.answer("one two and more")
    await api.completion(max_tokens=16, stop="two")
    [record] = seen
    assert record.outcome is Outcome.STOP
    assert [one.peak_pages for one in record.ledgers] == [9]


async def test_a_client_that_leaves_is_an_abort_with_a_ledger(api, engine, seen) -> None:
    leave = asyncio.Event()
    engine.scripts.append([*engine.answer("ab", None), leave, asyncio.Event()])
    engine.scripts.reverse()
    body = orjson.dumps({"model": api.model, "prompt": "hi", "stream": True})
    async for message in api.raw("/v1/completions", body, leave):
        if b"data" in message.get("body", b""):
            leave.set()
    [record] = seen
    assert told(record)["outcome"] is Outcome.ABORT
    assert [one.ledger for one in record.sequences.values()] == [engine.abort_ledger]


@pytest.mark.parametrize(
    ("failure", "status", "code", "outcome"),
    [
        (("queue_full", {}), 429, "queue_full", Outcome.REFUSED),
        (("queue_timeout", {}), 503, "queue_timeout", Outcome.ERROR),
        (("never_fits", {}), 400, "kv_capacity_exceeded", Outcome.REFUSED),
        (("step_failed", {}), 500, "step_failed", Outcome.ERROR),
    ],
)
async def test_what_the_engine_does_not_answer_is_told_with_its_code(
    api, engine, seen, failure, status, code, outcome
) -> None:
    engine.scripts.append([engine.failure(failure[0], **failure[1])])
    await api.completion()
    [record] = seen
    assert (record.status, record.error_code, record.outcome) == (status, code, outcome)
    assert record.ledgers == []


@pytest.mark.parametrize("path", ["completions", "messages"])
async def test_an_error_in_the_middle_of_a_stream_is_an_error_though_the_status_was_200(
    api, engine, seen, path
) -> None:
    engine.scripts.append([*engine.answer("ab", None), EngineDied("gone")])
    engine.scripts.reverse()
    if path == "completions":
        await api.completion(stream=True)
    else:
        body = {"model": api.model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        await api.http.post("/v1/messages", json=body)
    api.state.journal.close()  # the engine has died: no last word comes
    [record] = seen
    assert (record.status, record.error_code, record.outcome) == (200, "engine_died", Outcome.ERROR)


async def test_an_unexpected_exception_is_an_internal_error(api, engine, seen, monkeypatch) -> None:
    monkeypatch.setattr("server.app.list_models", lambda state: 1 / 0)
    assert (await api.http.get("/v1/models")).status_code == 500
    [record] = seen
    assert told(record) == {
        "method": "GET", "route": "/v1/models", "status": 500, "outcome": Outcome.ERROR, "error": "internal_error",
    }  # fmt: skip


async def test_routes_are_told_by_their_pattern_and_other_paths_not_at_all(api, seen) -> None:
    await api.http.get("/v1/models/secret-name")
    await api.http.get("/v1/secret-path")
    await api.http.post("/v1/models")
    assert [(one.route, one.status, one.outcome) for one in seen] == [
        ("/v1/models/{model:path}", 404, Outcome.REFUSED),
        (None, 404, Outcome.REFUSED),
        ("/v1/models", 405, Outcome.REFUSED),
    ]


async def test_probes_and_preflights_are_no_api_requests(api, seen) -> None:
    for path in ("/health", "/ready", "/metrics", "/version", "/openapi.json"):
        await api.http.get(path)
    await api.http.request("OPTIONS", "/v1/models")
    assert seen == []


async def test_embeddings_are_recorded_with_the_ledgers_of_their_inputs(api, engine, seen) -> None:
    for cached in (3, 4):
        [delta] = engine.answer("x", ledger=engine.make_ledger(cached_tokens=cached, decode_seconds=None))
        engine.scripts[-1] = [type(delta)(
            request_id="", token_ids=[], finish_reason=FinishReason.LENGTH, ledger=delta.ledger, embedding=bytes(16),
        )]  # fmt: skip
    response = await api.http.post("/v1/embeddings", json={"model": api.model, "input": ["hello", "you"]})
    assert response.status_code == 200, response.text
    [record] = seen
    assert (record.route, record.outcome) == ("/v1/embeddings", Outcome.LENGTH)
    assert (record.progress.usage.prompt_tokens, record.cached_tokens) == (8, 7)
    assert len(record.ledgers) == 2


async def test_only_the_headers_of_traces_are_kept(api, seen) -> None:
    headers = {"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "user=secret", "user-agent": "secret"}
    await api.http.get("/v1/models", headers=headers)
    assert seen[0].trace_headers == {"traceparent": "00-1-2-01", "tracestate": "a=b"}
