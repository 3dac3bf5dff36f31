"""Answers are counted by the template of their route and their status."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from server.app import create_app
from server.auth import ApiKeys
from server.state import ServerState


async def responses(api) -> dict[tuple[str, str], int]:
    """Answers by route and status, those that never came left out."""
    text = (await api.http.get("/metrics")).text
    found = re.findall(r'^octavo_http_responses_total{route="(.*)",status="(.*)"} (.*)$', text, re.MULTILINE)
    return {(route, status): int(float(count)) for route, status, count in found if float(count)}


async def test_a_route_is_named_by_its_template_whatever_was_asked_for(api) -> None:
    await api.http.get("/v1/models/org/tiny")
    await api.http.get("/v1/models/secret")
    await api.http.get("/v1/requests/secret")
    await api.http.get("/v1/responses/secret/input_items")
    await api.http.get("/secret")
    await api.http.get("/v1/secret/secret")
    assert await responses(api) == {
        ("/v1/models/{model:path}", "200"): 1,
        ("/v1/models/{model:path}", "404"): 1,
        ("/v1/requests/{name:path}", "404"): 1,
        ("/v1/responses/{response_id}/input_items", "404"): 1,
        ("other", "404"): 2,
    }
    assert "secret" not in (await api.http.get("/metrics")).text


async def test_a_plain_answer_a_stream_and_a_refusal_count_once_each_under_their_status(api, engine) -> None:
    await api.completion()
    engine.answer("many tokens, one answer")
    await api.completion(stream=True)
    await api.completion(max_tokens=-1)
    await api.http.get("/v1/completions")
    engine.scripts.append([engine.failure("queue_full", retry_after=1.0)])
    await api.completion()
    route = "/v1/completions"
    assert await responses(api) == {(route, "200"): 2, (route, "400"): 1, (route, "405"): 1, (route, "429"): 1}


async def test_a_stream_is_counted_when_it_begins(api, engine) -> None:
    gate = asyncio.Event()
    engine.answer("abc").insert(1, gate)
    body = b'{"model": "org/tiny", "prompt": "hi", "stream": true}'
    messages = api.raw("/v1/completions", body, asyncio.Event())
    assert (await anext(messages))["type"] == "http.response.start"
    assert await responses(api) == {("/v1/completions", "200"): 1}
    gate.set()
    assert [message["type"] async for message in messages][-1] == "http.response.body"
    assert ("/v1/completions", "200") in (counted := await responses(api))
    assert counted["/v1/completions", "200"] == 1


async def test_a_bug_is_a_500_of_its_route(api, monkeypatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("server.app.tokenize", fail)
    assert (await api.http.post("/tokenize", json={})).status_code == 500
    assert await responses(api) == {("/tokenize", "500"): 1}


async def test_a_stranger_and_a_preflight_are_counted_too(engine, byte_tokenizer) -> None:
    state = ServerState(
        engine, "org/tiny", tokenizer=byte_tokenizer, api_keys=ApiKeys(["key"]), allowed_origins=("https://a.example",)
    )
    transport = httpx.ASGITransport(app=create_app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as http:
        assert (await http.post("/v1/chat/completions", json={})).status_code == 401
        headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
        assert (await http.options("/v1/chat/completions", headers=headers)).status_code == 200
        text = (await http.get("/metrics")).text
    assert 'octavo_http_responses_total{route="/v1/chat/completions",status="401"} 1.0' in text
    assert 'octavo_http_responses_total{route="/v1/chat/completions",status="200"} 1.0' in text


@pytest.mark.parametrize("status", ["200", "400", "429", "500", "503"])
async def test_i07_what_an_alert_may_ask_for_is_there_from_the_start(api, status) -> None:
    for route in ("/v1/completions", "/v1/chat/completions", "/v1/messages"):
        assert await api.metric(f'octavo_http_responses_total{{route="{route}",status="{status}"}}') == 0
    assert await api.metric('octavo_http_responses_total{route="/health",status="200"}') == 0
    assert await api.metric('octavo_http_responses_total{route="other",status="404"}') == 0
