"""The limit on request bodies, which the app of these tests sets to 20,000 bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
import pytest

LIMIT = 20_000


def body_of(size: int, model: str) -> bytes:
    head = orjson.dumps({"model": model, "prompt": "hi"})[:-1]
    return head + b" " * (size - len(head) - 1) + b"}"


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 999):
        yield body[start : start + 999]


async def test_a_body_of_exactly_the_limit_is_read(api) -> None:
    body = body_of(LIMIT, api.model)
    assert (await api.http.post("/v1/completions", content=body)).status_code == 200
    assert (await api.http.post("/v1/completions", content=in_pieces(body))).status_code == 200


async def test_one_byte_more_is_a_413_that_names_the_limit(api, engine) -> None:
    response = await api.http.post("/v1/completions", content=body_of(LIMIT + 1, api.model))
    assert str(LIMIT) in api.assert_error(response, 413, code="request_too_large")
    assert response.headers["connection"] == "close"
    assert engine.requests == []


async def test_a_body_that_declares_no_length_is_cut_off_at_the_limit(api, engine) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1000
            yield b" " * 1000

    response = await api.http.post("/v1/completions", content=endless())
    api.assert_error(response, 413, code="request_too_large")
    assert read <= LIMIT + 2000
    assert engine.requests == []


@pytest.mark.parametrize(("context", "limit"), [(512, 512 * 32 + 65_536), (1_000_000, 8 * 1024 * 1024)])
async def test_without_a_choice_the_limit_is_what_the_context_can_need(api, state, engine, context, limit) -> None:
    state.max_request_bytes = None
    engine.ready = engine.make_ready(max_model_len=context)
    assert (await api.http.post("/v1/completions", content=body_of(limit, api.model))).status_code == 200
    response = await api.http.post("/v1/completions", content=body_of(limit + 1, api.model))
    assert str(limit) in api.assert_error(response, 413, code="request_too_large")
