"""The proxies' configurations of deploy/, with the real programs before a real server."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Server
from tests.e2e.held_stream import FIRST, LAST, Framing, held_stream
from tests.e2e.proxy import Proxy
from tests.free_port import free_port

pytestmark = pytest.mark.slow

NUM_TOKENS = 1000
SMALLEST_BUFFER = 4096  # of nginx; what it holds back comes in such pieces
HELD_BACK = 10.0  # seconds after which a proxy is taken to have kept an event
LIMITS = ("--num-gpu-blocks-override", "200", "--max-num-seqs", "1", "--stream-queue-position")


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server], tiny_llama_dir: Path) -> Server:
    return start_server(str(tiny_llama_dir), "--served-model-name", "tiny", *LIMITS)


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    running = Proxy(request.param, tmp_path_factory.mktemp(request.param), free_port(), server.port)
    yield running
    running.close()


def in_flight(server: Server) -> float:
    return server.metrics()["octavo_requests_in_flight"]


def test_a_stream_comes_piece_by_piece_and_not_when_it_is_over(server: Server, proxy: Proxy) -> None:
    with proxy.request(prompt=[1, 2, 3], max_tokens=NUM_TOKENS, stream=True) as connection:
        pieces = [connection.recv(65536)]
        with proxy.request(prompt=[4, 5, 6], max_tokens=1, stream=True) as waiting:
            told = b""
            while b": " not in told.partition(b"\r\n\r\n")[2]:  # its place, and for long nothing more
                told += waiting.recv(65536)
            assert b"data: " not in told
            assert in_flight(server) == 2
        while b"[DONE]" not in b"".join(pieces[-2:]):
            pieces.append(connection.recv(65536))
            assert pieces[-1]
    received = b"".join(pieces)
    assert b"200 OK" in received.split(b"\r\n")[0]
    assert b"text/event-stream" in received.split(b"\r\n\r\n")[0].lower()
    assert len(pieces) > len(received) / SMALLEST_BUFFER * 2
    assert b'"finish_reason":"length"' in received


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_an_event_arrives_while_the_server_holds_the_next_one_back(name: str, framing: Framing, tmp_path: Path) -> None:
    # nginx that buffers keeps what is not chunked until a buffer is full; and all, for a client that takes gzip.
    with held_stream(framing) as stream:
        proxy = Proxy(name, tmp_path, free_port(), stream.server_port, compressing=True)
        try:
            with socket.create_connection(("127.0.0.1", proxy.port), HELD_BACK) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n")
                received = b""
                while FIRST not in received:
                    received += connection.recv(65536)
                assert LAST not in received
                stream.released.set()
                while piece := connection.recv(65536):
                    received += piece
                assert LAST in received
        finally:
            proxy.close()


@pytest.mark.parametrize("stream", [False, True])
def test_h01_a_client_that_leaves_the_proxy_aborts_its_request_in_the_server(
    server: Server, proxy: Proxy, stream: bool
) -> None:
    aborts = server.metrics()['octavo_requests_total{outcome="abort"}']
    engine = server.engine_pid()
    os.kill(engine, signal.SIGSTOP)  # so that the answer can't be over before it is left
    try:
        connection = proxy.request(prompt=[4, 5, 6], max_tokens=NUM_TOKENS, stream=stream)
        server.wait_until(lambda: in_flight(server) == 1, "in flight")
        connection.close()
        server.wait_until(lambda: in_flight(server) == 0, "left")
    finally:
        os.kill(engine, signal.SIGCONT)
    server.wait_until(lambda: server.metrics()['octavo_requests_total{outcome="abort"}'] == aborts + 1, "aborted")
    server.wait_settled()


def test_a_refused_request_is_refused_in_the_servers_own_words(server: Server, proxy: Proxy) -> None:
    body = {"model": "tiny", "prompt": "x", "temperature": -1}

    answers = [httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body) for port in (server.port, proxy.port)]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].json() == answers[1].json()


def test_metrics_are_not_for_those_outside(server: Server, proxy: Proxy) -> None:
    assert [httpx.get(f"http://127.0.0.1:{port}/metrics").status_code for port in (server.port, proxy.port)] == [
        200,
        403,
    ]


def test_connections_to_the_server_are_kept(server: Server, proxy: Proxy) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}") as client:
        assert client.get("/v1/models").status_code == 200
        before = proxy.connections_to(server.port)
        assert client.get("/v1/models").status_code == 200
        assert before & proxy.connections_to(server.port)
