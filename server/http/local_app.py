"""LocalApp: requests to an ASGI app in this process, without a socket.

Knows ASGI, and no endpoint. Invariant: when a reply is closed or its reader is cancelled, the app sees its client
leave, as it would over HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope

JSON_HEADERS = ((b"content-type", b"application/json"), (b"host", b"localhost"))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that has begun. ``headers`` have lower-case names; ``chunks`` are the body's, as they come."""

    status: int
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks])


class LocalApp:
    """The client of one app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    @contextlib.asynccontextmanager
    async def post(self, path: str, body: bytes) -> AsyncGenerator[Reply]:
        """Send a JSON body; the reply once its status is known. Raises what the app raises."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        left = asyncio.Event()
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        running = asyncio.create_task(self._run(path, receive, messages))
        try:
            start = await messages.get()
            if start is None:
                await running  # raises what kept the app from answering
                raise RuntimeError("the app has answered nothing")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
            yield Reply(start["status"], headers, _chunks(messages, running))
        finally:
            left.set()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running

    async def _run(self, path: str, receive: Receive, messages: asyncio.Queue[Message | None]) -> None:
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(JSON_HEADERS),
            "client": None,
            "server": ("localhost", 80),
        }
        try:
            await self._app(scope, receive, messages.put)
        finally:
            messages.put_nowait(None)


async def _chunks(messages: asyncio.Queue[Message | None], running: asyncio.Task[None]) -> AsyncIterator[bytes]:
    while (message := await messages.get()) is not None:
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return
    await running
