"""Pages that are shared, kept apart, or dropped: n, cache_salt, API keys and context_overflow on a real engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONTEXT = 256
PROMPT = "In the beginning there was a page, and on it, in a small and even hand, a hundred and one tokens of text."
KEYS = ("alpha-key", "beta-key")


@pytest.fixture(scope="module")
def server(start_server: Callable, tiny_llama_dir: Path):
    return start_server(
        str(tiny_llama_dir), "--served-model-name", "tiny", "--dtype", "float32", "--num-gpu-blocks-override", "64",
        "--max-model-len", str(CONTEXT),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _everything_settles(server, settled: Callable) -> None:
    settled(server)


def complete(server, key: str | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True} | fields
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    response = server.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return dict(response.json())


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def stream(server, while_it_runs: Callable[[], None] = lambda: None, **fields: Any) -> list[dict[str, Any]]:
    """The choices in the chunks of a streamed answer; ``while_it_runs`` is called between them."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "stream": True} | fields
    choices: list[dict[str, Any]] = []
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choices += json.loads(line.removeprefix("data: "))["choices"]
                while_it_runs()
    return choices


def texts(choices: list[dict[str, Any]]) -> list[str]:
    joined = [""] * (1 + max(choice["index"] for choice in choices))
    for choice in choices:
        joined[choice["index"]] += choice["text"]
    return joined


def test_b06_samples_differ_and_the_set_of_them_is_reproducible_plain_and_streamed(server) -> None:
    fields: dict[str, Any] = {"n": 3, "seed": 42, "temperature": 1, "max_tokens": 24}
    first = complete(server, **fields)
    sampled = texts(first["choices"])
    assert len(set(sampled)) == 3
    assert texts(complete(server, **fields)["choices"]) == sampled
    streamed = stream(server, **fields)
    assert texts(streamed) == sampled
    assert sorted(c["index"] for c in streamed if c["finish_reason"] == "length") == [0, 1, 2]
    assert complete(server, **(fields | {"n": 1}))["choices"][0]["text"] == sampled[0]
    assert first["usage"]["completion_tokens"] == 3 * 24
    assert first["usage"]["prompt_tokens"] == complete(server)["usage"]["prompt_tokens"]


def test_samples_hold_the_pages_of_their_prompt_together(server) -> None:
    seen: list[tuple[float, float]] = []

    def look() -> None:
        metrics = server.metrics()
        shared = sum(value for name, value in metrics.items() if name.startswith("octavo_kv_shared_pages"))
        seen.append((shared, server.pages("held")))

    stream(server, look, n=3, max_tokens=100)
    num_prompt_tokens = complete(server)["usage"]["prompt_tokens"]
    full_pages = num_prompt_tokens // 16
    shared_pages = {shared for shared, _ in seen}
    # the partly filled last page is shared too, until the first sample writes to it
    assert full_pages in shared_pages <= {0, full_pages, full_pages + 1}
    own_pages = -(-(num_prompt_tokens + 100) // 16) - full_pages
    assert max(held for _, held in seen) <= full_pages + 3 * own_pages


def test_b20_the_best_of_five_is_one_of_them_and_all_are_counted(server) -> None:
    fields: dict[str, Any] = {"seed": 7, "temperature": 1, "max_tokens": 12}
    candidates = texts(complete(server, n=5, **fields)["choices"])
    best = complete(server, n=2, best_of=5, **fields)
    assert set(texts(best["choices"])) < set(candidates)
    assert len(best["choices"]) == 2
    assert best["usage"]["completion_tokens"] == 5 * 12


def test_a_client_that_leaves_frees_the_pages_of_all_samples(server) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 100, "ignore_eos": True, "stream": True, "n": 8}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    server.wait_settled()
    assert server.metrics()["octavo_requests_in_flight"] == 0


def test_g07_no_page_is_found_under_another_salt(server) -> None:
    prompt = "Salted: " + PROMPT
    assert cached(complete(server, prompt=prompt, cache_salt="a")) == 0
    within = cached(complete(server, prompt=prompt, cache_salt="a"))
    assert within > 0
    assert within % 16 == 0
    before = server.metrics()['octavo_prefix_cache_missed_tokens_total{reason="salt"}']
    for salt in ({"cache_salt": "b"}, {}):
        assert cached(complete(server, prompt=prompt, **salt)) == 0
    assert server.metrics()['octavo_prefix_cache_missed_tokens_total{reason="salt"}'] > before
    assert cached(complete(server, prompt=prompt, cache_salt="a")) == within


def test_g07_no_page_is_found_under_another_key(start_server: Callable, tiny_llama_dir: Path) -> None:
    keyed = start_server(
        str(tiny_llama_dir), "--served-model-name", "tiny", "--dtype", "float32", "--num-gpu-blocks-override", "64",
        "--max-model-len", str(CONTEXT), "--swap-space", "0.001",
        "--api-key", KEYS[0], "--api-key", KEYS[1],
    )  # fmt: skip
    assert keyed.http.get("/v1/models").status_code == 401
    assert cached(complete(keyed, KEYS[0])) == 0
    assert cached(complete(keyed, KEYS[0])) > 0
    assert cached(complete(keyed, KEYS[1])) == 0
    assert cached(complete(keyed, KEYS[1])) > 0
    assert cached(complete(keyed, KEYS[0], cache_salt="x")) == 0
    keyed.wait_settled()
    assert keyed.metrics()['octavo_host_pages{state="free"}'] > 0
    log = keyed.log.read_text()
    assert "host memory" in log
    assert not any(key in log for key in KEYS)
    assert keyed.stop() == 0


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_rotates_goes_on_beyond_the_context(server, streamed: bool) -> None:
    before = server.metrics()["octavo_rotations_total"]
    fields: dict[str, Any] = {"max_tokens": 2 * CONTEXT, "context_overflow": "rotate", "include_ledger": True}
    if streamed:
        [last] = [choice for choice in stream(server, **fields) if choice["finish_reason"] is not None]
    else:
        answer = complete(server, **fields)
        assert answer["usage"]["completion_tokens"] == 2 * CONTEXT
        [last] = answer["choices"]
    assert last["finish_reason"] == "length"
    assert last["ledger"]["rotations"] >= 2
    assert server.metrics()["octavo_rotations_total"] - before == last["ledger"]["rotations"]


def test_samples_that_rotate_all_come_to_their_end(server) -> None:
    answer = complete(server, n=2, max_tokens=CONTEXT, context_overflow="rotate", seed=1)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["usage"]["completion_tokens"] == 2 * CONTEXT
    assert len(set(texts(answer["choices"]))) == 2


def test_the_ledger_says_what_a_request_held_and_found(server) -> None:
    complete(server, prompt="Ledger: " + PROMPT)
    answer = complete(server, prompt="Ledger: " + PROMPT, include_ledger=True)
    ledger = answer["choices"][0]["ledger"]
    total = answer["usage"]["prompt_tokens"] + 8 - 1  # the last token is never computed
    assert ledger["peak_pages"] == -(-total // 16)
    assert ledger["cached_tokens"] == cached(answer) > 0
    assert ledger["page_seconds"] > 0
    assert (ledger["rotations"], ledger["preemptions"]) == (0, [])
