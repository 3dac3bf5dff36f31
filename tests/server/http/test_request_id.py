"""X-Request-Id: on every answer to a generation request, whatever becomes of it."""

from __future__ import annotations

import asyncio

import orjson
import pytest

PATHS = {"/v1/completions": "cmpl-", "/v1/chat/completions": "chatcmpl-"}


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_an_answer_carries_its_id(api, path) -> None:
    response = await getattr(api, path)()
    assert response.headers.get_list("x-request-id") == [response.json()["id"]]


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_a_stream_carries_its_id(api, path) -> None:
    response = await getattr(api, path)(stream=True)
    assert {chunk["id"] for chunk in api.events(response.text)[:-1]} == {response.headers["x-request-id"]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status"), [("queue_full", 429), ("queue_timeout", 503), ("timeout", 503), ("step_failed", 500)]
)
async def test_an_error_after_admission_carries_the_id_of_its_request(api, engine, stream, code, status) -> None:
    engine.scripts.append([engine.failure(code)])
    response = await api.completion(stream=stream)
    assert response.status_code == status
    [request] = engine.requests
    assert request.request_id == response.headers["x-request-id"] + "-0-0"


async def test_a_bug_carries_the_id_too(api, engine) -> None:
    engine.scripts.append([RuntimeError("secret")])
    response = await api.completion()
    assert response.status_code == 500
    assert engine.requests[0].request_id == response.headers["x-request-id"] + "-0-0"


@pytest.mark.parametrize("body", [b"{", b'{"model":"other","prompt":"hi"}', b"x" * 30_000])
@pytest.mark.parametrize("path", PATHS)
async def test_a_refusal_at_the_door_carries_an_id_too(api, path, body) -> None:
    response = await api.http.post(path, content=body)
    assert response.status_code >= 400
    assert response.headers["x-request-id"].startswith(PATHS[path])


@pytest.mark.parametrize("chosen", ["a", "my request/1?", "~" * 128, "cmpl-0"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_may_choose_the_id_that_answers_carry(api, engine, chosen, stream) -> None:
    api.http.headers["x-request-id"] = chosen
    response = await api.completion(stream=stream)
    assert response.headers.get_list("x-request-id") == [chosen]
    assert engine.requests[0].request_id.startswith("cmpl-")  # the engine's own are unique, whatever clients choose
    engine.scripts.append([engine.failure("queue_full")])
    assert (await api.completion()).headers["x-request-id"] == chosen
    assert (await api.completion(max_tokens=0)).headers["x-request-id"] == chosen


@pytest.mark.parametrize("chosen", [b"", b"x" * 129, b"schl\xc3\xbcssel", b"tab\there", b"\x7f"])
@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_an_id_of_the_wrong_form_is_refused(api, engine, path, chosen) -> None:
    api.http.headers = [(b"x-request-id", chosen)]
    response = await getattr(api, path)()
    assert "128" in api.assert_error(response, 400, param="X-Request-Id")
    assert "x-request-id" not in response.headers
    assert engine.requests == []


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/nothing"])
async def test_answers_to_other_requests_have_no_id(api, path) -> None:
    assert "x-request-id" not in (await api.http.get(path)).headers


async def test_two_requests_at_once_have_each_their_own(api) -> None:
    responses = await asyncio.gather(*(api.completion() for _ in range(5)))
    assert [r.headers["x-request-id"] for r in responses] == [r.json()["id"] for r in responses]
    assert len({orjson.loads(r.content)["id"] for r in responses}) == 5


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/models", 200), ("GET", "/v1/nothing", 404), ("PUT", "/v1/models", 405)]
)
async def test_answers_that_generate_nothing_carry_the_id_that_the_client_chose(api, method, path, status) -> None:
    response = await api.http.request(method, path, headers={"x-request-id": "mine"})
    assert response.status_code == status
    assert response.headers.get_list("x-request-id") == ["mine"]
    unnamed = await api.http.request(method, path, headers={"x-request-id": "x" * 129})
    assert "x-request-id" not in unnamed.headers
