"""The official client for Python, unmodified, against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI

from tests.clients.conftest import KEY, MODEL, ServedModel

HELLO = [{"role": "user", "content": "Hello"}]
ABORTED = 'octavo_requests_total{outcome="abort"}'


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
