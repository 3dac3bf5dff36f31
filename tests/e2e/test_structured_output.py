"""Structured output of a real server: it validates, streamed as plain, with stops in its way, beside other requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "ü"]}},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
FIELDS = {"model": "tiny", "prompt": "Hello", "max_tokens": 200, "temperature": 1.5, "response_format": FORMAT}


@pytest.fixture(scope="module")
def server(start_server: Callable, tiny_llama_dir: Path):
    return start_server(
        str(tiny_llama_dir), "--served-model-name", "tiny", "--num-gpu-blocks-override", "30", "--max-model-len", "400"
    )


def complete(server, **fields: object) -> dict:
    answer = server.http.post("/v1/completions", json=FIELDS | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(server, **fields: object) -> tuple[str, str]:
    text = server.http.post("/v1/completions", json={**FIELDS, **fields, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in chunks]
    return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


def validates(choice: dict) -> bool:
    """Whether the choice is whole; then it must be valid."""
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(choice["text"]), SCHEMA)
        return True
    assert choice["finish_reason"] == "length"
    return False


def test_outputs_validate_under_preemption_and_with_stops_in_their_way(server, settled: Callable) -> None:
    settled(server)
    stops = {"stop": ['"', "{", "a"], "stop_token_ids": [ord("}"), ord(":")]}
    answers: list[dict] = []
    with ThreadPoolExecutor(8) as pool:
        for first in range(0, 40, 8):
            answers += pool.map(lambda seed: complete(server, seed=seed, n=2, **stops), range(first, first + 8))
            if server.total("octavo_preemptions_total") > 0:
                break  # else this machine was so busy that they came one after the other
    whole = [validates(choice) for answer in answers for choice in answer["choices"]]
    assert sum(whole) > len(whole) / 2
    assert server.total("octavo_preemptions_total") > 0


def test_a_stream_is_the_plain_answer(server, settled: Callable) -> None:
    settled(server)
    for seed in range(3):
        [choice] = complete(server, seed=seed)["choices"]
        assert streamed(server, seed=seed) == (choice["text"], choice["finish_reason"])


def test_e05_a_bad_schema_is_a_400_and_the_server_goes_on(server, settled: Callable) -> None:
    settled(server)
    bad = {"type": "json_schema", "json_schema": {"name": "thing", "schema": {"type": "hiccup"}}}
    answer = server.http.post("/v1/completions", json=FIELDS | {"response_format": bad})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_grammar")
    assert complete(server, response_format=None, max_tokens=3)["usage"]["completion_tokens"] >= 1
