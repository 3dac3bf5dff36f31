"""The default model over HTTP, with guessed tokens and without: the same answers, whole and streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import orjson
import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

LIST = "1. red apple\n2. green pear\n3. red apple\n4. green pear\n5. red apple\n6. green"
REQUESTS: list[dict[str, Any]] = [
    {"prompt": LIST, "temperature": 0, "max_tokens": 60},
    {"prompt": LIST, "temperature": 0.7, "seed": 5, "max_tokens": 60},
    {"prompt": LIST, "temperature": 1, "top_p": 0.9, "top_k": 40, "seed": 6, "max_tokens": 40, "n": 2},
    {"prompt": LIST, "temperature": 0, "max_tokens": 60, "stop": ["9. red"]},
    {"prompt": [LIST, "The sea was"], "temperature": 0.3, "seed": 7, "max_tokens": 30},
]


@pytest.fixture(scope="module")
def guessing_server(start_server: Callable[..., Server]) -> Iterator[Server]:
    server = start_server("--dtype", "float32", "--max-model-len", "4096", "--speculative", "ngram")
    yield server
    server.stop()


def ask(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    model = server.http.get("/v1/models").json()["data"][0]["id"]
    return server.http.post("/v1/completions", json={"model": model, **request}).raise_for_status().json()


def test_answers_over_http_are_the_same_with_guesses_and_without(
    default_server: Server, guessing_server: Server, settled: Callable[[Server], Server]
) -> None:
    settled(guessing_server)
    for request in REQUESTS:
        plain, guessed = ask(default_server, request), ask(guessing_server, request)
        assert guessed["choices"] == plain["choices"]
        assert guessed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert guessing_server.metrics()["octavo_spec_accepted_tokens_total"] > 0


def test_a_stream_has_the_same_text_and_an_event_less_for_every_accepted_guess(
    default_server: Server, guessing_server: Server
) -> None:
    expected = ask(default_server, REQUESTS[0])
    body = {"stream": True, "stream_options": {"include_usage": True}, "include_ledger": True}
    model = expected["model"]
    answer = guessing_server.http.post("/v1/completions", json={"model": model, **REQUESTS[0], **body})
    events = [orjson.loads(line[5:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert "".join(choice["text"] for choice in choices) == expected["choices"][0]["text"]
    assert events[-1]["usage"]["completion_tokens"] == 60
    ledger = next(choice["ledger"] for choice in choices if choice.get("ledger"))
    # how many are guessed depends on how long steps take here
    assert ledger["accepted_draft_tokens"] <= ledger["draft_tokens"]
    assert sum(bool(choice["text"]) for choice in choices) <= 60 - ledger["accepted_draft_tokens"]


def test_the_start_says_that_tokens_are_guessed(guessing_server: Server) -> None:
    assert "speculation  n-grams, at most 4 tokens for a request in a step" in guessing_server.log.read_text()
