"""Streams go past the middleware, all but their start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message, Receive, Scope, Send

from server.http.direct_send import DirectSend
from server.http.sse import EventStream


async def frames() -> AsyncGenerator[bytes]:
    yield b"data: 2\n\n"


@pytest.mark.parametrize(("is_direct", "passed"), [(True, ["start"]), (False, ["start", "body", "body", "body"])])
async def test_only_the_start_of_a_stream_passes_the_middleware(is_direct, passed) -> None:
    seen: list[str] = []
    sent: list[Message] = []

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        async def watching_send(message: Message) -> None:
            seen.append(message["type"].rpartition(".")[2])
            await send(message)

        await EventStream(b"data: 1\n\n", frames())(scope, receive, watching_send)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled before")

    async def send(message: Message) -> None:
        sent.append(message)

    app = DirectSend(middleware) if is_direct else middleware
    await app({"type": "http"}, receive, send)
    assert seen == passed
    assert [message.get("body") for message in sent] == [None, b"data: 1\n\n", b"data: 2\n\n", b""]
