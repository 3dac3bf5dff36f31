"""Health, readiness, version and errors of the routes themselves. Ids like J01 name cases known from other servers."""

from __future__ import annotations

import pytest

from engine.client import EngineState


async def test_health_and_ready_are_200_while_the_engine_serves(api) -> None:
    assert (await api.http.get("/health")).json() == {"status": "ok"}
    assert (await api.http.get("/ready")).json() == {"status": "ready"}


@pytest.mark.parametrize("engine_state", [s for s in EngineState if s is not EngineState.READY])
async def test_j03_health_and_ready_are_503_while_the_engine_does_not_serve(api, engine, engine_state) -> None:
    engine.state = engine_state
    for path in ("/health", "/ready"):
        response = await api.http.get(path)
        assert engine_state.value in api.assert_error(response, 503, code="engine_unavailable")
        assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_j01_health_and_ready_are_503_while_an_engine_with_work_is_silent(api, engine, state, path) -> None:
    engine.silence = state.silence_limit + 1
    api.assert_error(await api.http.get(path), 503, code="engine_silent")
    engine.silence = 0.0
    assert (await api.http.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/version", "/v1/models"])
async def test_head_answers_like_get_without_a_body(api, engine, path) -> None:
    got, head = await api.http.get(path), await api.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    engine.state = EngineState.FAILED
    assert (await api.http.head(path)).status_code == (await api.http.get(path)).status_code


async def test_a_slash_too_many_is_a_404_error_object(api) -> None:
    assert "/metrics/" in api.assert_error(await api.http.get("/metrics/"), 404, code="not_found")


async def test_j01_the_silence_that_health_allows_is_configurable(api, engine, state) -> None:
    state.silence_limit, engine.silence = 2.0, 3.0
    assert (await api.http.get("/health")).status_code == 503


async def test_while_the_tokenizer_loads_the_server_is_alive_and_not_ready(api, state, engine) -> None:
    state.tokenizer = None
    assert (await api.http.get("/health")).status_code == 200
    api.assert_error(await api.http.get("/ready"), 503, code="engine_unavailable")
    api.assert_error(await api.completion(), 503, code="engine_unavailable")
    assert engine.requests == []


async def test_j04_a_draining_server_is_alive_not_ready_and_refuses_new_requests(api, state, engine) -> None:
    state.draining = True
    assert (await api.http.get("/health")).status_code == 200
    api.assert_error(await api.http.get("/ready"), 503, code="shutting_down")
    for response in (await api.completion(), await api.chat(stream=True)):
        api.assert_error(response, 503, code="shutting_down")
    assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_to_an_engine_that_does_not_serve_get_503_and_when_to_retry(api, engine, stream) -> None:
    engine.state = EngineState.RESTARTING
    response = await api.completion(stream=stream)
    api.assert_error(response, 503, code="engine_unavailable")
    assert int(response.headers["retry-after"]) >= 1


async def test_version_is_a_string(api) -> None:
    assert isinstance((await api.http.get("/version")).json()["version"], str)


async def test_an_unknown_route_is_a_404_error_object(api) -> None:
    assert "/v1/nothing" in api.assert_error(await api.http.post("/v1/nothing"), 404, code="not_found")


async def test_a_wrong_method_is_a_405_error_object_that_says_what_is_allowed(api) -> None:
    response = await api.http.get("/v1/completions")
    api.assert_error(response, 405, code="method_not_allowed")
    assert response.headers["allow"] == "POST"


async def test_a_bug_is_a_500_error_object_without_its_details(api, engine) -> None:
    engine.scripts.append([RuntimeError("secret detail")])
    response = await api.completion()
    message = api.assert_error(response, 500, code="internal_error")
    assert "secret" not in message
    assert await api.outcomes() == {"error": 1}
    assert (await api.completion()).status_code == 200
