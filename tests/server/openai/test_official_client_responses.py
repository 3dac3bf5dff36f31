"""The openai package against the app: responses and embeddings, and what fails on the server's side."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from engine.client import EngineDied
from engine.messages import RequestDelta
from scheduler.request import FinishReason


@pytest.fixture
async def client(app) -> AsyncIterator[AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False))
    async with AsyncOpenAI(base_url="http://octavo/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


async def test_a_response_plain_and_streamed(client, api, engine) -> None:
    engine.answer("Héllo.", FinishReason.STOP)
    plain = await client.responses.create(model=api.model, input="hi")
    engine.answer("Héllo.", FinishReason.STOP)
    async with client.responses.stream(model=api.model, input="hi") as stream:
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        streamed = await stream.get_final_response()
    assert plain.output_text == text == streamed.output_text == "Héllo."
    assert plain.usage == streamed.usage
    assert (plain.status, plain.model) == ("completed", api.model)


async def test_the_output_of_a_response_can_be_the_input_of_the_next(client, api, engine) -> None:
    engine.answer("b", FinishReason.STOP)
    first = await client.responses.create(model=api.model, input="a")
    sent = [{"role": "user", "content": "a"}, *first.output, {"role": "user", "content": "c"}]
    await client.responses.create(model=api.model, input=sent)
    await client.responses.create(model=api.model, input="c", previous_response_id=first.id)
    by_items, by_id = engine.requests[1:]
    assert by_items.prompt_token_ids == by_id.prompt_token_ids


@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_embeddings_in_either_encoding(client, api, engine, encoding) -> None:
    vector = struct.pack("<4f", 3.0, 0.0, 4.0, 0.0)
    for _ in range(2):
        delta = RequestDelta(request_id="", token_ids=[], finish_reason=FinishReason.LENGTH, embedding=vector)
        engine.scripts.append([delta])
    asked = {} if encoding is None else {"encoding_format": encoding}
    made = await client.embeddings.create(model=api.model, input=["a", "b"], **asked)
    assert [one.index for one in made.data] == [0, 1]
    if encoding == "base64":
        numbers = struct.unpack("<4f", base64.b64decode(made.data[0].embedding))
        assert numbers == pytest.approx((0.6, 0, 0.8, 0))
    else:
        assert made.data[1].embedding == pytest.approx([0.6, 0, 0.8, 0])
    assert made.usage.prompt_tokens == 2


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ("step_failed", openai.InternalServerError),
        ("queue_timeout", openai.InternalServerError),
        ("queue_full", openai.RateLimitError),
        ("never_fits", openai.BadRequestError),
    ],
)
async def test_what_fails_in_the_engine_is_of_the_right_class(client, api, engine, failure, kind) -> None:
    calls = [
        lambda: client.responses.create(model=api.model, input="hi"),
        lambda: client.responses.create(model=api.model, input="hi", stream=True),
        lambda: client.embeddings.create(model=api.model, input="hi"),
        lambda: client.chat.completions.create(model=api.model, messages=[{"role": "user", "content": "hi"}]),
    ]
    for call in calls:
        engine.scripts.append([engine.failure(failure)])
        with pytest.raises(kind):
            await call()


async def test_d17_a_failure_within_a_stream_is_an_event_of_its_own(client, api, engine) -> None:
    engine.answer("abc", None).append(EngineDied("the engine process died"))
    stream = await client.responses.create(model=api.model, input="hi", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.message == "the engine process died"
