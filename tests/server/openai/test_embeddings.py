"""POST /v1/embeddings over a scripted engine: what it is asked for, and what becomes of the vectors."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from typing import Any

import httpx
import orjson
import pytest

from engine.client import EngineDied
from engine.messages import Pooling, RequestDelta
from scheduler.request import FinishReason


def pooled(*values: float) -> list[RequestDelta]:
    """The script of a prompt whose vector is ``values``."""
    vector = struct.pack(f"<{len(values)}f", *values)
    return [RequestDelta(request_id="", token_ids=[], finish_reason=FinishReason.LENGTH, embedding=vector)]


async def embed(api: Any, **fields: Any) -> httpx.Response:
    return await api.http.post("/v1/embeddings", json={"model": api.model, "input": "hi"} | fields)


async def test_a_text_becomes_a_vector_of_unit_length(api, engine) -> None:
    engine.scripts.append(pooled(3.0, 0.0, 4.0, 0.0))
    response = await embed(api)
    numbers = [struct.unpack("<f", struct.pack("<f", value))[0] for value in (0.6, 0.0, 0.8, 0.0)]
    assert response.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": numbers}],
        "model": api.model,
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    [request] = engine.requests
    assert request.prompt_token_ids == [71, 72]
    assert (request.pooling, request.sampling.max_tokens) == (Pooling.LAST, 0)
    assert response.headers["x-request-id"] == request.request_id.removesuffix("-0-0")


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", [[71, 72]]),
        (["hi", "a"], [[71, 72], [64]]),
        ([3, 4], [[3, 4]]),
        ([[3, 4], [5]], [[3, 4], [5]]),
    ],
)
async def test_the_four_forms_of_input_are_taken_in_their_order(api, engine, given, prompts) -> None:
    engine.scripts += [pooled(*(float(place == number) for place in range(4))) for number in range(len(prompts))]
    answer = (await embed(api, input=given)).json()
    assert [request.prompt_token_ids for request in engine.requests] == prompts
    assert [one["index"] for one in answer["data"]] == list(range(len(prompts)))
    assert [one["embedding"].index(1.0) for one in answer["data"]] == list(range(len(prompts)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


async def test_base64_and_floats_are_the_same_numbers(api, engine) -> None:
    engine.scripts += [pooled(0.1, -0.2, 0.3, 0.7), pooled(0.1, -0.2, 0.3, 0.7)]
    [packed] = (await embed(api, encoding_format="base64")).json()["data"]
    [floats] = (await embed(api, encoding_format="float")).json()["data"]
    assert list(struct.unpack("<4f", base64.b64decode(packed["embedding"]))) == floats["embedding"]


async def test_fewer_dimensions_are_the_first_ones_at_unit_length_again(api, engine) -> None:
    engine.scripts.append(pooled(3.0, 4.0, 12.0, 84.0))
    [one] = (await embed(api, dimensions=2)).json()["data"]
    assert one["embedding"] == pytest.approx([0.6, 0.8], rel=1e-7)
    assert math.hypot(*one["embedding"]) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("pooling", list(Pooling))
async def test_pooling_is_chosen_by_the_request(api, engine, pooling) -> None:
    engine.scripts.append(pooled(1.0, 0.0, 0.0, 0.0))
    await embed(api, pooling=pooling.value)
    assert engine.requests[0].pooling is pooling


async def test_a_vector_of_zeros_stays_one(api, engine) -> None:
    engine.scripts.append(pooled(0.0, 0.0, 0.0, 0.0))
    assert (await embed(api)).json()["data"][0]["embedding"] == [0.0] * 4


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_what_is_no_number_is_no_embedding(api, engine, value) -> None:
    engine.scripts.append(pooled(1.0, value, 0.0, 0.0))
    api.assert_error(await embed(api), 500, code="internal_error")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ""}, "input", None),
        ({"input": []}, "input", None),
        ({"input": [[]]}, "input", None),
        ({"input": ["a", [1]]}, "input", None),
        ({"input": [1, "a"]}, "input", None),
        ({"input": 5}, "input", None),
        ({"input": [260]}, "input", None),
        ({"input": ["a"] * 1025}, "input", None),
        ({"input": "a" * 512}, None, "kv_capacity_exceeded"),
        ({"input": "a" * 513}, "input", "context_length_exceeded"),
        ({"input": "a" * 600}, "input", "context_length_exceeded"),
        ({"input": [1] * 513}, "input", "context_length_exceeded"),
        ({"input": ["a", "a" * 400]}, None, "kv_capacity_exceeded"),
        ({"encoding_format": "int8"}, "encoding_format", None),
        ({"dimensions": 0}, "dimensions", None),
        ({"dimensions": 5}, "dimensions", None),
        ({"dimensions": "2"}, "dimensions", None),
        ({"pooling": "cls"}, "pooling", None),
        ({"max_tokens": 1}, "max_tokens", "unknown_parameter"),
        ({"model": None}, "model", None),
    ],
)
async def test_a_wrong_field_is_named_before_the_engine_hears_of_it(api, engine, fields, param, code) -> None:
    api.assert_error(await embed(api, **fields), 400, param=param, code=code)
    assert engine.requests == []


async def test_no_more_inputs_are_in_the_engine_than_run_there(api, engine) -> None:
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, engine.num_in_flight)

    engine.scripts += [[watch, *pooled(1.0, 0.0, 0.0, 0.0)] for _ in range(40)]
    response = await embed(api, input=["a"] * 40)
    assert len(response.json()["data"]) == 40
    assert most == 8
    assert await api.outcomes() == {"length": 40}


async def test_the_first_failure_ends_all_and_the_others_are_aborted(api, engine) -> None:
    never = asyncio.Event()
    engine.scripts += [[never], [engine.failure("step_failed")], [never]]
    api.assert_error(await embed(api, input=["a", "b", "c"]), 500, code="step_failed")
    assert len(engine.aborted) == 2
    assert engine.num_in_flight == 0
    assert await api.outcomes() == {"abort": 2, "error": 1}


async def test_an_engine_that_dies_is_an_error_and_counted_as_one(api, engine) -> None:
    engine.scripts.append([EngineDied("the engine process died")])
    api.assert_error(await embed(api), 500, code="engine_died")
    assert await api.outcomes() == {"error": 1}


async def test_a_full_queue_is_a_429(api, engine) -> None:
    engine.scripts.append([engine.failure("queue_full", retry_after=2.0)])
    response = await embed(api)
    api.assert_error(response, 429, code="queue_full")
    assert response.headers["retry-after"] == "2"
    assert await api.outcomes() == {}


async def test_when_the_client_leaves_every_input_ends(api, engine) -> None:
    leave, never = asyncio.Event(), asyncio.Event()
    engine.scripts += [[leave.set, never], [never]]
    body = orjson.dumps({"model": api.model, "input": ["a", "b"]})
    async for _ in api.raw("/v1/embeddings", body, leave):
        pass
    assert len(engine.aborted) == 2
    assert engine.num_in_flight == 0


async def test_salt_tenant_and_timeout_reach_the_engine(api, engine) -> None:
    engine.scripts.append(pooled(1.0, 0.0, 0.0, 0.0))
    await embed(api, cache_salt="s", timeout=2.5, user="u")
    assert (engine.requests[0].cache_salt, engine.requests[0].timeout) == ("s", 2.5)
