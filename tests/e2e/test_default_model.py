"""The default model through a real server: the same right words by every way of asking."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import openai
import pytest

# Continuations by the reference implementation in float32 on the same dequantised weights.
CONTINUATIONS = [
    ("List: 1, 2, 3,", " 4, 5, 6, 7, 8, ", 16),
    (
        "January, February, March,",
        " April, May, June, July, August, September, October, November,",
        16,
    ),
    ("Question: What is the capital of France?\nAnswer:", " Paris", 1),
]


@pytest.fixture
def client(default_server, settled: Callable) -> openai.OpenAI:
    settled(default_server)
    return openai.OpenAI(base_url=f"{default_server.url}/v1", api_key="none", max_retries=0)


def model_id(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.mark.parametrize(("prompt", "expected", "max_tokens"), CONTINUATIONS)
def test_curl_openai_plain_and_streamed_give_the_reference_continuation(
    client: openai.OpenAI, default_server, prompt: str, expected: str, max_tokens: int
) -> None:
    model = model_id(client)
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
    curl = subprocess.run(
        ["curl", "-sS", f"{default_server.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body],
        capture_output=True,
        check=True,
    )
    by_curl = json.loads(curl.stdout)
    plain = client.completions.create(model=model, prompt=prompt, max_tokens=max_tokens, temperature=0)
    stream = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    streamed = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert by_curl["choices"][0]["text"] == expected
    assert plain.choices[0].text == expected
    assert streamed == expected
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage is not None
    assert plain.usage.completion_tokens == max_tokens
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == max_tokens
    assert chunks[-1].choices == []


def test_first_chat_request_works_and_stops_before_the_next_user_line(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=model_id(client),
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=40,
        temperature=0,
    )
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert "User:" not in reply.choices[0].message.content


def test_seeded_samples_repeat_and_unseeded_samples_differ(client: openai.OpenAI) -> None:
    def sample(**kwargs: object) -> str:
        reply = client.completions.create(
            model=model_id(client), prompt="Once upon a time", max_tokens=12, temperature=1.0, **kwargs
        )
        return reply.choices[0].text

    assert sample(seed=7) == sample(seed=7)
    assert sample(seed=7) != sample(seed=8)
    assert len({sample() for _ in range(4)}) > 1


def test_stop_string_across_token_borders_ends_the_text_before_it(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=model_id(client), prompt="List: 1, 2, 3,", max_tokens=16, temperature=0, stop=["6, 7"]
    )
    assert reply.choices[0].text == " 4, 5, "
    assert reply.choices[0].finish_reason == "stop"
