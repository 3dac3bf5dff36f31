"""The HTTP server over real sockets: what never reaches the app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from server.http.http_protocol import MAX_HEAD_BYTES
from server.http.http_server import HttpServer
from server.http.listener import listen

GET = b"GET /health HTTP/1.1\r\nhost: octavo\r\n"


@pytest.fixture
async def port(state) -> AsyncIterator[int]:
    state.max_request_bytes = 1 << 20
    with listen("127.0.0.1", 0) as listener:
        server = HttpServer(state, listener)
        yield listener.getsockname()[1]
        await server.close()


async def answer(port: int, *pieces: bytes) -> tuple[int, bytes]:
    """Status and body of what comes back until the server closes, one piece sent after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        received = await reader.read()
    writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def padded(size: int) -> bytes:
    """The head of a request, ``size`` bytes of it, without its end."""
    head = GET + b"connection: close\r\nx-padding: "
    return head + b"x" * (size - len(head))


async def test_headers_up_to_the_limit_are_read(port) -> None:
    status, body = await answer(port, padded(MAX_HEAD_BYTES - 4) + b"\r\n\r\n")
    assert (status, body) == (200, b'{"status":"ok"}')


@pytest.mark.parametrize("num_pieces", [1, 7])
async def test_headers_beyond_the_limit_are_a_431_and_the_end(port, num_pieces) -> None:
    head = padded(MAX_HEAD_BYTES + 1)
    step = -(-len(head) // num_pieces)
    status, body = await answer(port, *(head[start : start + step] for start in range(0, len(head), step)))
    assert status == 431
    assert orjson.loads(body)["error"]["code"] == "request_header_fields_too_large"


async def test_endless_trailers_are_a_431_too(port) -> None:
    post = b"POST /health HTTP/1.1\r\nhost: octavo\r\ntransfer-encoding: chunked\r\n\r\n"
    trailer = b"0\r\nx-padding: " + b"x" * (MAX_HEAD_BYTES + 1 - 14)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        writer.write(post)
        assert b" 405 " in await reader.readline()
        writer.write(trailer)
        assert b" 431 " in await reader.read()
    writer.close()


async def test_a_body_larger_than_the_limit_of_headers_is_read(port, state) -> None:
    body = orjson.dumps({"model": state.served_model_name, "prompt": "hi"}) + b" " * (3 * MAX_HEAD_BYTES)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: octavo\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    assert (await answer(port, head % len(body) + body))[0] == 200


@pytest.mark.parametrize("line", [b"BREW /health HTTP/1.1", b"nonsense"])
async def test_what_is_no_http_is_a_400_error_object(port, line) -> None:
    status, body = await answer(port, line + b"\r\n\r\n")
    assert status == 400
    assert orjson.loads(body)["error"]["code"] == "invalid_http"


async def test_head_has_no_body(port) -> None:
    head = b"HEAD /ready HTTP/1.1\r\nhost: octavo\r\nconnection: close\r\n\r\n"
    assert await answer(port, head) == (200, b"")
