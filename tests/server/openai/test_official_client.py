"""The openai package against the app: what it sends is accepted, and what it gets is what it expects."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from engine.client import EngineDied
from scheduler.request import FinishReason


@pytest.fixture
async def client(app) -> AsyncIterator[AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False))
    async with AsyncOpenAI(base_url="http://octavo/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


async def test_completions_plain_and_streamed(client, api, engine) -> None:
    engine.answer("héllo")
    plain = await client.completions.create(model=api.model, prompt="hi", max_tokens=6, temperature=0)
    engine.answer("héllo")
    stream = await client.completions.create(model=api.model, prompt="hi", max_tokens=6, temperature=0, stream=True)
    streamed = [chunk.choices[0] async for chunk in stream]
    assert plain.choices[0].text == "".join(choice.text for choice in streamed) == "héllo"
    assert plain.choices[0].finish_reason == streamed[-1].finish_reason == "length"
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 6


async def test_chat_plain_and_streamed_with_usage(client, api, engine) -> None:
    messages = [{"role": "user", "content": "hi"}]
    engine.answer("Hello.", FinishReason.STOP)
    plain = await client.chat.completions.create(model=api.model, messages=messages)
    engine.answer("Hello.", FinishReason.STOP)
    stream = await client.chat.completions.create(
        model=api.model, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert plain.choices[0].message.content == "".join(delta.content or "" for delta in deltas) == "Hello."
    assert deltas[0].role == "assistant"
    assert chunks[-1].usage == plain.usage


async def test_models_can_be_listed_and_retrieved(client, api) -> None:
    assert [model.id async for model in client.models.list()] == [api.model]
    assert (await client.models.retrieve(api.model)).owned_by == "octavo"


async def test_errors_arrive_as_the_clients_own_with_their_code(client, api) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.completions.create(model="other", prompt="hi")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.completions.create(model=api.model, prompt="x" * 600, stream=True)
    assert too_long.value.code == "context_length_exceeded"


async def test_d17_a_failure_within_a_stream_is_raised(client, api, engine) -> None:
    engine.answer("abc", None).append(EngineDied("the engine process died"))
    stream = await client.completions.create(model=api.model, prompt="hi", stream=True)
    assert [(await anext(stream)).choices[0].text for _ in range(3)] == ["a", "b", "c"]
    with pytest.raises(openai.APIError, match="the engine process died"):
        await anext(stream)
