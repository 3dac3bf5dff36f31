"""What a server must survive: requests that never fit, clients that leave, an engine that dies, an order to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

# 40 pages of 16 tokens: 640 positions, for a context of 512 that fits, or of 2048 that does not.
SMALL_POOL = ("--num-gpu-blocks-override", "40", "--dtype", "float32")


@pytest.fixture(scope="module")
def server(start_server: Callable, tiny_llama_dir: Path):
    return start_server(str(tiny_llama_dir), *SMALL_POOL, "--max-num-seqs", "8", "--served-model-name", "tiny")


@pytest.fixture(autouse=True)
def _pages_come_back(server) -> Iterator[None]:
    yield
    server.wait_settled()
    answer = complete(server, prompt=[5, 6, 7], max_tokens=1)
    assert answer.status_code == 200


def complete(server, **body: object) -> httpx.Response:
    return server.http.post("/v1/completions", json={"model": "tiny", "temperature": 0, "ignore_eos": True, **body})


def context(server) -> int:
    return int(server.log.read_text().split("max context")[1].split()[0].replace(",", ""))


def test_a14_prompt_longer_than_the_context_is_refused_with_both_numbers(server) -> None:
    limit = context(server)
    for stream in (False, True):
        answer = complete(server, prompt=[5] * (limit + 88), max_tokens=1, stream=stream)
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert str(limit + 88) in error["message"]
        assert str(limit) in error["message"]


def test_a15_prompt_and_max_tokens_beyond_the_context_are_refused(server) -> None:
    limit = context(server)
    answer = complete(server, prompt=[5] * 10, max_tokens=limit)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_f01_f03_what_exceeds_the_pool_by_one_token_is_refused_and_what_fills_it_is_served(server) -> None:
    # the last token of an answer is never computed: 640 slots hold 641 tokens
    fits = complete(server, prompt=[5] * 601, max_tokens=40)
    exceeds = complete(server, prompt=[5] * 602, max_tokens=40)
    assert fits.status_code == 200
    assert fits.json()["usage"]["completion_tokens"] == 40
    assert exceeds.status_code == 400
    error = exceeds.json()["error"]
    assert error["code"] == "kv_capacity_exceeded"
    assert "41" in error["message"]
    assert "40" in error["message"]


def test_f04_f12_requests_beyond_the_pool_preempt_and_all_finish_as_if_alone(server) -> None:
    prompts = [[10 + i, *range(20, 44)] for i in range(8)]
    alone = [complete(server, prompt=prompt, max_tokens=150).json()["choices"][0]["text"] for prompt in prompts]
    before = server.total("octavo_preemptions_total")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt=prompt, max_tokens=150), prompts))
    assert [answer.json()["choices"][0]["text"] for answer in answers] == alone
    assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {150}
    assert server.total("octavo_preemptions_total") - before >= 1


def outcome(server, name: str) -> float:
    return server.metrics()[f'octavo_requests_total{{outcome="{name}"}}']


def raw_request(server, **body: object) -> socket.socket:
    """A request over a bare socket, so that the test can leave at any moment."""
    payload = json.dumps({"model": "tiny", "temperature": 0, "ignore_eos": True, **body}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    )
    connection.sendall(head.encode() + b"\r\n\r\n" + payload)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_h01_a_client_that_leaves_frees_its_pages_and_counts_as_abort(server, stream: bool) -> None:
    aborts = outcome(server, "abort")
    tokens = server.metrics()["octavo_generation_tokens_total"]
    connection = raw_request(server, prompt=[7, 8, 9], max_tokens=600, stream=stream)
    server.wait_until(lambda: server.metrics()["octavo_generation_tokens_total"] > tokens + 2, "generating")
    assert server.pages("held") > 0
    connection.close()
    server.wait_until(lambda: outcome(server, "abort") == aborts + 1, "aborted")
    server.wait_settled()
    assert server.metrics()["octavo_generation_tokens_total"] < tokens + 600


def test_h10_h12_streams_that_clients_leave_at_a_word_of_their_own_are_aborts_and_every_count_agrees(server) -> None:
    before = server.metrics()
    tokens = server.total("octavo_generation_tokens_total")
    streams = [raw_request(server, prompt=[21 + i, *range(60, 80)], max_tokens=500, stream=True) for i in range(5)]
    for connection in streams:
        received = b""
        while received.count(b'"text"') < 2:  # there is their word, and they read no further
            received += connection.recv(64)
        connection.close()
    server.wait_settled()
    after = server.metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    outcomes = {name: count for name, count in grown.items() if name.startswith("octavo_requests_total") and count}
    assert outcomes == {'octavo_requests_total{outcome="abort"}': 5}
    assert grown["octavo_requests_submitted_total"] == 5
    assert after["octavo_requests_in_flight"] == 0
    assert grown["octavo_prompt_tokens_total"] == 5 * 21
    assert grown["octavo_prefix_cache_queries_tokens_total"] == 5 * 21
    missed = sum(count for name, count in grown.items() if name.startswith("octavo_prefix_cache_missed_tokens_total"))
    assert grown["octavo_prefix_cache_hits_tokens_total"] + missed == 5 * 21
    assert 5 * 2 <= server.total("octavo_generation_tokens_total") - tokens < 5 * 500


def test_h02_streams_that_reset_while_the_pool_is_full_leave_others_unharmed(server) -> None:
    prompt = list(range(30, 60))
    expected = complete(server, prompt=prompt, max_tokens=200).json()["choices"][0]["text"]
    leavers = [raw_request(server, prompt=[11 + i, *range(50)], max_tokens=500, stream=True) for i in range(6)]
    answers: list[httpx.Response] = []
    staying = threading.Thread(target=lambda: answers.append(complete(server, prompt=prompt, max_tokens=200)))
    staying.start()
    for connection in leavers:
        connection.recv(64)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # RST, not FIN
        connection.close()
    staying.join(60)
    assert answers[0].json()["choices"][0]["text"] == expected


def test_j01_a_stopped_engine_turns_health_to_503_and_recovers(start_server: Callable, tiny_llama_dir: Path) -> None:
    server = start_server(
        str(tiny_llama_dir), *SMALL_POOL, "--served-model-name", "tiny", "--engine-silence-limit", "0.5"
    )
    engine = server.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    connection = raw_request(server, prompt=[1, 2, 3], max_tokens=5)
    server.wait_until(lambda: server.http.get("/health").status_code == 503, "unhealthy")
    os.kill(engine, signal.SIGCONT)
    server.wait_until(lambda: server.http.get("/health").status_code == 200, "healthy")
    connection.close()
    assert server.stop() == 0


def test_d17_j03_an_engine_that_dies_fails_what_is_in_flight_and_serves_again(
    start_server: Callable, tiny_llama_dir: Path
) -> None:
    server = start_server(str(tiny_llama_dir), *SMALL_POOL, "--served-model-name", "tiny")
    expected = complete(server, prompt=[3, 4, 5], max_tokens=20).json()["choices"][0]["text"]
    engine = server.engine_pid()
    os.kill(engine, signal.SIGSTOP)  # so that the requests are surely in flight when it dies
    with ThreadPoolExecutor(1) as pool, raw_request(server, prompt=[1, 2, 3], max_tokens=400, stream=True) as streaming:
        plain = pool.submit(complete, server, prompt=[1, 2, 4], max_tokens=400)
        server.wait_until(lambda: server.metrics()["octavo_requests_in_flight"] == 2, "in flight")
        os.kill(engine, signal.SIGKILL)
        answer = plain.result(30)
        received = streaming.recv(65536)
    assert answer.status_code in (500, 503)
    assert answer.json()["error"]["message"]
    assert b'"error"' in received
    server.wait_until(lambda: server.http.get("/ready").status_code == 200, "ready again", 60)
    assert complete(server, prompt=[3, 4, 5], max_tokens=20).json()["choices"][0]["text"] == expected
    assert outcome(server, "error") == 2
    assert server.stop() == 0


def test_j04_sigterm_lets_running_streams_finish_and_exits_with_0(start_server: Callable, tiny_llama_dir: Path) -> None:
    server = start_server(str(tiny_llama_dir), *SMALL_POOL, "--served-model-name", "tiny")
    with raw_request(server, prompt=[1, 2, 3], max_tokens=300, stream=True) as connection:
        received = connection.recv(64)
        server.process.send_signal(signal.SIGTERM)
        while data := connection.recv(65536):
            received += data
    assert b"data: [DONE]" in received
    assert b'"finish_reason":"length"' in received
    assert server.process.wait(20) == 0


def test_a_killed_server_leaves_no_engine_behind_not_even_one_that_reads_no_messages(
    start_server: Callable, tiny_llama_dir: Path
) -> None:
    server = start_server(str(tiny_llama_dir), *SMALL_POOL)
    engine = server.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    server.process.kill()
    server.process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{engine}/stat").exists() and Path(f"/proc/{engine}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the engine outlived its server"
        time.sleep(0.02)


def test_j06_sigint_when_idle_exits_at_once(start_server: Callable, tiny_llama_dir: Path) -> None:
    server = start_server(str(tiny_llama_dir), *SMALL_POOL)
    engine = server.engine_pid()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(5) == 0
    assert not Path(f"/proc/{engine}").exists()
