"""Log probabilities, echoes and changed logits on a real engine. Ids like B13 name cases known from other servers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EOS = 257  # of the tiny tokenizer
PROMPT = "In the beginning there was a page."


@pytest.fixture(scope="module")
def server(start_server: Callable, tiny_llama_dir: Path):
    return start_server(
        str(tiny_llama_dir), "--served-model-name", "tiny", "--dtype", "float32", "--num-gpu-blocks-override", "64",
        "--max-model-len", "256", "--max-num-batched-tokens", "32",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _everything_settles(server, settled: Callable) -> None:
    settled(server)


def complete(server, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "temperature": 0} | fields
    response = server.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def choice(server, **fields: Any) -> dict[str, Any]:
    return dict(complete(server, **fields)["choices"][0])


def tokenize(server, text: str) -> list[int]:
    body = {"model": "tiny", "prompt": text, "add_special_tokens": False}
    return list(server.http.post("/tokenize", json=body).json()["tokens"])


def streamed(server, **fields: Any) -> dict[str, Any]:
    """The text and joined log probabilities of a streamed answer of one choice."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "temperature": 0, "stream": True}
    joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    text = ""
    with server.http.stream("POST", "/v1/completions", json=body | fields) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                [one] = json.loads(line.removeprefix("data: "))["choices"]
                text += one["text"]
                for name, values in (one["logprobs"] or {}).items():
                    joined[name] += values
    return {"text": text, "logprobs": joined}


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_b12_b13_b17_an_echo_has_every_tokens_logprob_streamed_or_not(server, num_top) -> None:
    body = complete(server, echo=True, logprobs=num_top)
    [plain] = body["choices"]
    logprobs = plain["logprobs"]
    assert plain["text"].startswith(PROMPT)
    assert "".join(logprobs["tokens"]) == plain["text"]
    assert len(logprobs["tokens"]) == body["usage"]["prompt_tokens"] + 8
    assert logprobs["token_logprobs"][0] is None
    for token, logprob, top in list(zip(*list(logprobs.values())[:3], strict=True))[1:]:
        assert top[token] == logprob
        assert num_top <= len(top) <= num_top + 1
        assert math.isfinite(logprob)
    again = streamed(server, echo=True, logprobs=num_top)
    assert again == {"text": plain["text"], "logprobs": logprobs}


def test_b12_a_prompts_logprobs_are_those_of_drawing_after_its_beginning(server) -> None:
    ids = tokenize(server, PROMPT)
    positions = choice(server, prompt=ids, prompt_logprobs=1, max_tokens=0)["prompt_logprobs"]
    for length in (1, 2, len(ids) - 1):
        [best] = [entry["logprob"] for entry in positions[length].values() if entry["rank"] == 1]
        [drawn] = choice(server, prompt=ids[:length], logprobs=0, max_tokens=1)["logprobs"]["token_logprobs"]
        assert drawn == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("echo", [True, False])
def test_a16_a_prompt_can_be_read_without_drawing_a_token(server, echo) -> None:
    body = complete(server, echo=echo, logprobs=1, prompt_logprobs=2, max_tokens=0)
    [one] = body["choices"]
    assert (one["text"], one["finish_reason"]) == (PROMPT if echo else "", "length")
    assert body["usage"]["completion_tokens"] == 0
    positions = one["prompt_logprobs"]
    assert positions[0] is None
    assert len(positions) == body["usage"]["prompt_tokens"]
    for position in positions[1:]:
        ranks = sorted(entry["rank"] for entry in position.values())
        assert ranks[:2] == [1, 2]
    if echo:
        told = [next(iter(position.values()))["logprob"] for position in positions[1:]]
        assert one["logprobs"]["token_logprobs"][1:] == told


def test_an_echo_says_the_same_when_its_prompt_is_cached(server) -> None:
    long = PROMPT * 4
    first = choice(server, prompt=long, echo=True, logprobs=2)
    complete(server, prompt=long)
    assert choice(server, prompt=long, echo=True, logprobs=2) == first


def test_b15_c01_a_temperature_near_zero_is_greedy_and_its_logprobs_finite(server) -> None:
    greedy = choice(server, logprobs=5)
    for fields in ({"temperature": 0.0001}, {"temperature": 0.01, "top_p": 0.3}):
        cold = choice(server, logprobs=5, seed=1, **fields)
        assert cold["text"] == greedy["text"]
        assert all(math.isfinite(logprob) for logprob in cold["logprobs"]["token_logprobs"])


def test_b06_samples_differ_and_their_logprobs_are_their_own(server) -> None:
    fields = {"n": 3, "seed": 42, "temperature": 1, "echo": True, "logprobs": 1}
    body = complete(server, **fields)
    assert len({one["text"] for one in body["choices"]}) == 3
    for one in body["choices"]:
        assert "".join(one["logprobs"]["tokens"]) == one["text"]
        assert one["logprobs"]["token_logprobs"][0] is None
    assert complete(server, **fields)["choices"] == body["choices"]


def test_a04_a_bias_forces_a_token_and_logprobs_stay_the_models_own(server) -> None:
    [x] = tokenize(server, "x")
    assert choice(server, max_tokens=1)["text"] != "x"
    forced = choice(server, logit_bias={str(x): 100}, max_tokens=3, logprobs=1)
    assert forced["text"] == "xxx"
    assert forced["logprobs"]["token_logprobs"][0] < forced["logprobs"]["token_logprobs"][0] / 2 < -0.1


def test_min_tokens_put_off_the_end(server) -> None:
    ids = tokenize(server, PROMPT)
    eos = {str(EOS): 100}
    ended = complete(server, prompt=ids, ignore_eos=False, logit_bias=eos)
    assert (ended["choices"][0]["finish_reason"], ended["usage"]["completion_tokens"]) == ("stop", 1)
    later = complete(server, prompt=ids, ignore_eos=False, logit_bias=eos, min_tokens=3)
    assert (later["choices"][0]["finish_reason"], later["usage"]["completion_tokens"]) == ("stop", 4)


def test_a_presence_penalty_keeps_a_greedy_answer_from_repeating_itself(server) -> None:
    [x] = tokenize(server, "x")
    bias = {str(x): 1.5}
    tokens = choice(server, logprobs=0, max_tokens=24)["logprobs"]["tokens"]
    penalised = choice(server, logprobs=0, max_tokens=24, presence_penalty=2, frequency_penalty=2, logit_bias=bias)
    assert penalised["logprobs"]["tokens"] != tokens
