"""A client that does not read its stream: what is for it waits with it, and nobody else does."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

NUM_TOKENS = 600
# 20 alternatives for each token of each of eight samples: 4 MB, more than the sockets between take in
WIDE: dict[str, Any] = {
    "model": "tiny", "prompt": [5, 6, 7], "n": 8, "seed": 1, "max_tokens": NUM_TOKENS,
    "ignore_eos": True, "logprobs": 20,
}  # fmt: skip


@pytest.fixture
def server(start_server: Callable, tiny_llama_dir: Path):
    return start_server(
        str(tiny_llama_dir), "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "1024",
        "--num-gpu-blocks-override", "1024",
    )  # fmt: skip


def open_unread(server, **body: object) -> socket.socket:
    """A stream of which nothing is read yet, with little room on the client's side."""
    payload = json.dumps(body | {"stream": True}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    connection.sendall(head.encode() + payload)
    return connection


def read_events(connection: socket.socket) -> list[dict[str, Any]]:
    received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    lines = [line for line in received.split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


@pytest.mark.slow
def test_d21_a_client_that_does_not_read_holds_up_nobody_and_gets_the_rest_at_once(server) -> None:
    def quick() -> httpx.Response:
        return server.http.post(
            "/v1/completions", json={"model": "tiny", "prompt": [8, 9], "max_tokens": 20, "temperature": 0}
        )

    expected = server.http.post("/v1/completions", json=WIDE).json()["choices"]
    before = quick().json()["choices"]
    with open_unread(server, **WIDE) as connection:
        server.wait_until(lambda: server.total("octavo_requests_running") > 0, "running")
        assert quick().json()["choices"] == before
        server.wait_until(lambda: server.total("octavo_requests_running") == 0, "computed though nobody reads", 60)
        assert quick().json()["choices"] == before
        choices = [choice for event in read_events(connection) for choice in event["choices"]]
    for index, whole in enumerate(expected):
        parts = [choice for choice in choices if choice["index"] == index]
        assert "".join(part["text"] for part in parts) == whole["text"]
        tokens = [token for part in parts if part["logprobs"] for token in part["logprobs"]["tokens"]]
        assert tokens == whole["logprobs"]["tokens"]
        merged = max(len(part["logprobs"]["tokens"]) for part in parts if part["logprobs"])
        assert merged > 50  # what it had not read came at once; no step brings more than one
    server.wait_settled()
