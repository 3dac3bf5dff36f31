"""The official client for Python, unmodified, against a real server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.conftest import KEY, MODEL, ServedModel

COLOURS = {"type": "string", "enum": ["red", "green"]}
PARAMETERS = {
    "type": "object",
    "properties": {"colour": COLOURS, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "paint", "description": "Paints.", "parameters": PARAMETERS}}]
HELLO = [{"role": "user", "content": "Hello"}]
ABORTED = 'octavo_requests_total{outcome="abort"}'


class Verdict(BaseModel):
    """An answer that a schema forces, whatever the model would say."""

    colour: Literal["red", "green"]
    sure: bool


@pytest.fixture
def client(served: ServedModel) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.url, api_key=KEY, max_retries=0) as client:
        yield client


def test_completions(client: OpenAI, served: ServedModel) -> None:
    fields = {"model": MODEL, "prompt": "Hello", "max_tokens": 16, "temperature": 0}
    expected = served.completion("Hello", 16)
    assert client.completions.create(**fields).choices[0].text == expected
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**fields, stream=True)) == expected


def test_b02_a_prompt_of_ids_that_tokenize_gave(client: OpenAI, served: ServedModel) -> None:
    ids = served.server.http.post("/tokenize", json={"prompt": "Hello there"}).json()["tokens"]
    answer = client.completions.create(model=MODEL, prompt=ids, max_tokens=16, temperature=0)
    assert answer.choices[0].text == served.completion("Hello there", 16)


def test_chat(client: OpenAI, served: ServedModel) -> None:
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "temperature": 0}
    expected = served.chat("Hello", 16)
    plain = client.chat.completions.create(**fields)
    assert plain.choices[0].message.content == expected
    *chunks, last = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert last.usage == plain.usage


def test_responses(client: OpenAI, served: ServedModel) -> None:
    fields = {"model": MODEL, "input": "Hello", "max_output_tokens": 16, "temperature": 0}
    expected = served.chat("Hello", 16)
    plain = client.responses.create(**fields)
    assert plain.output_text == expected
    *events, last = client.responses.create(**fields, stream=True)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected
    assert last.type == "response.incomplete"
    assert last.response.output_text == expected
    following = client.responses.create(**fields, previous_response_id=plain.id)
    told = client.responses.input_items.list(following.id, order="asc")
    assert [item.role for item in told] == ["user", "assistant", "user"]
    assert client.responses.retrieve(plain.id) == plain
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(plain.id)
    client.responses.delete(plain.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(plain.id)


def test_a_tool_that_must_be_called(client: OpenAI) -> None:
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 1200, "temperature": 0, "parallel_tool_calls": False}
    plain = client.chat.completions.create(**fields, tools=TOOLS, tool_choice="required").choices[0]
    assert plain.finish_reason == "tool_calls"
    [call] = plain.message.tool_calls
    assert call.function.name == "paint"
    Verdict.model_validate_json(call.function.arguments, strict=True)
    with client.chat.completions.stream(**fields, tools=TOOLS, tool_choice="required") as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert [one.function.arguments for one in streamed.message.tool_calls] == [call.function.arguments]
    answered = [*HELLO, plain.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    last = client.chat.completions.create(**fields | {"messages": answered, "max_tokens": 16}, tools=TOOLS)
    assert last.choices[0].message.content


def test_a_function_that_a_response_must_call(client: OpenAI) -> None:
    tools = [{"type": "function", "strict": True, **TOOLS[0]["function"]}]
    fields = {
        "model": MODEL,
        "input": "Hello",
        "max_output_tokens": 1200,
        "temperature": 0,
        "tools": tools,
        "parallel_tool_calls": False,
    }
    plain = client.responses.create(**fields, tool_choice={"type": "function", "name": "paint"})
    [call] = plain.output
    assert (call.type, call.name) == ("function_call", "paint")
    Verdict.model_validate_json(call.arguments, strict=True)
    with client.responses.stream(**fields, tool_choice="required") as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        [streamed] = stream.get_final_response().output
    assert "".join(pieces) == streamed.arguments == call.arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    following = client.responses.create(
        **fields | {"input": [output], "max_output_tokens": 16}, previous_response_id=plain.id
    )
    assert following.output[0].type == "message"


def test_an_answer_is_an_object_of_the_class_asked_for(client: OpenAI) -> None:
    fields = {"model": MODEL, "temperature": 0}
    chat = client.chat.completions.parse(**fields, messages=HELLO, max_tokens=1200, response_format=Verdict)
    assert isinstance(chat.choices[0].message.parsed, Verdict)
    response = client.responses.parse(**fields, input="Hello", max_output_tokens=1200, text_format=Verdict)
    assert response.output_parsed == chat.choices[0].message.parsed
    with client.responses.stream(**fields, input="Hello", max_output_tokens=1200, text_format=Verdict) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed


def test_embeddings(client: OpenAI) -> None:
    made = client.embeddings.create(model=MODEL, input=["Hello", "Hello world", "Hello"])
    first, other, again = (one.embedding for one in made.data)
    assert first == again
    assert first != other
    assert math.hypot(*first) == pytest.approx(1, rel=1e-6)
    short = client.embeddings.create(model=MODEL, input="Hello", dimensions=8, encoding_format="float")
    length = math.hypot(*first[:8])
    assert short.data[0].embedding == pytest.approx([value / length for value in first[:8]], rel=1e-5)


def test_errors_are_of_the_right_classes(client: OpenAI, served: ServedModel) -> None:
    ask = client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        ask(model="other", messages=HELLO)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as too_long:
            ask(model=MODEL, messages=HELLO, max_tokens=5000, stream=stream)
        assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as unknown:
        ask(model=MODEL, messages=HELLO, extra_body={"no_such_field": 1})
    assert (unknown.value.param, unknown.value.code) == ("no_such_field", "unknown_parameter")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.APIStatusError) as too_large:
        ask(model=MODEL, messages=[{"role": "user", "content": "x" * 9_000_000}])
    assert too_large.value.status_code == 413
    with pytest.raises(openai.APIConnectionError):
        client.with_options(base_url="http://127.0.0.1:1/v1").models.list()


def test_an_answer_that_takes_too_long_is_the_clients_timeout(client: OpenAI, served: ServedModel) -> None:
    before = served.server.metrics()[ABORTED]
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=httpx.Timeout(5, read=0.001)).completions.create(
            model=MODEL, prompt="Hello", max_tokens=900, extra_body={"ignore_eos": True}
        )
    served.server.wait_until(lambda: served.server.metrics()[ABORTED] == before + 1, "aborted")
    served.server.wait_settled()


def test_h02_a_stream_that_is_closed_early_gives_its_pages_back(client: OpenAI, served: ServedModel) -> None:
    before = served.server.metrics()[ABORTED]
    long = {"max_tokens": 900, "stream": True, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(model=MODEL, messages=HELLO, **long) as stream:
        for _ in range(3):
            next(stream)
    served.server.wait_until(lambda: served.server.metrics()[ABORTED] == before + 1, "aborted")
    served.server.wait_settled()
