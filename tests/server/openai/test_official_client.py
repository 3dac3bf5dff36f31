"""The openai package against the app: what it sends is accepted, and what it gets is what it expects."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from engine.client import EngineDied
from scheduler.request import FinishReason
from server.text.chat_template import ChatTemplate


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
    assert (too_long.value.code, too_long.value.param) == ("context_length_exceeded", "prompt")


async def test_d17_a_failure_within_a_stream_is_raised(client, api, engine) -> None:
    engine.answer("abc", None).append(EngineDied("the engine process died"))
    stream = await client.completions.create(model=api.model, prompt="hi", stream=True)
    assert [(await anext(stream)).choices[0].text for _ in range(3)] == ["a", "b", "c"]
    with pytest.raises(openai.APIError, match="the engine process died"):
        await anext(stream)


@pytest.fixture
async def patient(app, monkeypatch) -> AsyncIterator[tuple[AsyncOpenAI, list[float]]]:
    """A client that retries twice, and the seconds it has waited, none of which passed."""
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("openai._base_client.anyio.sleep", wait)
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False))
    async with AsyncOpenAI(base_url="http://octavo/v1", api_key="none", max_retries=2, http_client=http) as client:
        yield client, waits


@pytest.mark.parametrize("stream", [False, True])
async def test_f18_a_full_queue_is_tried_again_after_the_seconds_it_named(patient, api, engine, stream) -> None:
    client, waits = patient
    engine.scripts += [[engine.failure("queue_full", retry_after=seconds)] for seconds in (2.2, 119.5)]
    engine.answer("abc")
    answer = await client.completions.create(model=api.model, prompt="hi", stream=stream)
    if stream:
        assert "".join([chunk.choices[0].text async for chunk in answer]) == "abc"
    else:
        assert answer.choices[0].text == "abc"
    assert waits == [3.0, 120.0]
    assert len(engine.requests) == 3


async def test_f18_a_queue_that_stays_full_is_a_rate_limit_error(patient, api, engine) -> None:
    client, waits = patient
    engine.scripts += [[engine.failure("queue_full", retry_after=4.0)] for _ in range(3)]
    with pytest.raises(openai.RateLimitError) as refused:
        await client.completions.create(model=api.model, prompt="hi")
    assert (refused.value.code, refused.value.type) == ("queue_full", "rate_limit_error")
    assert refused.value.request_id == engine.requests[-1].request_id.removesuffix("-0-0")
    assert waits == [4.0, 4.0]


@pytest.mark.parametrize("fields", [{"max_tokens": 5000}, {"extra_body": {"priority": 3}}, {"model": "other"}])
async def test_f18_what_is_wrong_in_itself_is_not_tried_again(patient, api, engine, fields) -> None:
    client, waits = patient
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
        await client.completions.create(**{"model": api.model, "prompt": "hi"} | fields)
    assert waits == []
    assert engine.requests == []


@pytest.mark.parametrize(("started", "status"), [(False, 503), (True, 504)])
async def test_f18_a_request_out_of_its_own_time_is_not_tried_again(patient, api, engine, started, status) -> None:
    client, waits = patient
    engine.scripts.append([engine.failure("timeout", started=started)])
    with pytest.raises(openai.InternalServerError) as late:
        await client.completions.create(model=api.model, prompt="hi", extra_body={"timeout": 5})
    assert (late.value.status_code, late.value.code) == (status, "timeout")
    assert waits == []


async def test_f18_what_waited_too_long_to_start_is_tried_again(patient, api, engine) -> None:
    client, waits = patient
    engine.scripts.append([engine.failure("queue_timeout")])
    engine.answer("abc")
    assert (await client.completions.create(model=api.model, prompt="hi")).choices[0].text == "abc"
    assert waits == [1.0]


async def test_comments_about_the_queue_do_not_disturb_the_client(client, api, engine, state) -> None:
    state.stream_queue_position = True
    engine.answer("abc")[:0] = [engine.queued(2), engine.queued(1)]
    stream = await client.completions.create(model=api.model, prompt="hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc"


async def test_the_id_a_client_chose_comes_back_to_it(client, api) -> None:
    answer = await client.completions.create(model=api.model, prompt="hi", extra_headers={"X-Request-Id": "mine"})
    assert answer._request_id == "mine"


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CALLS = "Well. " + '<tool_call>{"name": "f", "arguments": {"a": [1, "é"]}}</tool_call>' * 2


async def test_e12_tool_calls_of_a_stream_are_put_together_as_the_plain_ones(client, api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ tools | length }}<tool_call>{{ messages[-1].content }}")
    messages = [{"role": "user", "content": "hi"}]
    engine.answer(CALLS, FinishReason.STOP)
    plain = await client.chat.completions.create(model=api.model, messages=messages, tools=TOOLS)
    engine.answer(CALLS, FinishReason.STOP)
    async with client.chat.completions.stream(model=api.model, messages=messages, tools=TOOLS) as stream:
        streamed = await stream.get_final_completion()
    for answer in (plain, streamed):
        [choice] = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("Well.", "tool_calls")
        assert [call.function.name for call in choice.message.tool_calls] == ["f", "f"]
        assert [call.function.arguments for call in choice.message.tool_calls] == ['{"a": [1, "é"]}'] * 2
        assert len({call.id for call in choice.message.tool_calls}) == 2
    engine.answer("42", FinishReason.STOP)
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "x"} for call in plain.choices[0].message.tool_calls
    ]
    again = await client.chat.completions.create(
        model=api.model, messages=[*messages, plain.choices[0].message, *results], tools=TOOLS
    )
    assert again.choices[0].message.content == "42"


async def test_log_probabilities_of_a_chat(client, api, engine) -> None:
    engine.answer("té", FinishReason.STOP)
    answer = await client.chat.completions.create(
        model=api.model, messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=1
    )
    entries = answer.choices[0].logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == "té"
    assert entries[0].top_logprobs[0].token == "e"
