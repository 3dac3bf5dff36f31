"""Server-sent events: the frames of a streamed answer and the response that sends them.

Knows framing and disconnection, not what the frames say. Invariants: the status line goes out only when the first frame
is known, so that what fails before it is an ordinary error response; a client that leaves closes the frames' source at
once, during a silence too.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ApiError
from server.http.direct_send import direct_send
from server.http.disconnect import ClientDisconnected, unless_disconnected

DONE = b"data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def frame(payload: bytes) -> bytes:
    """One event; ``payload`` is JSON, which has no line breaks."""
    return b"data: " + payload + b"\n\n"


def named_frame(name: str, payload: bytes) -> bytes:
    """An event with a name of its own, which has no line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip; ``text`` has no line breaks."""
    return b": " + text.encode() + b"\n\n"


def error_frame(error: ApiError) -> bytes:
    """The error object as an event, for a failure after the status line."""
    return frame(orjson.dumps(error.body()))


class EventStream(Response):
    """Sends ``first`` and then each of ``rest`` as it comes."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._rest):
            with contextlib.suppress(ClientDisconnected):
                await unless_disconnected(receive, self._send(send, direct_send(scope) or send))

    async def _send(self, send_start: Send, send: Send) -> None:
        await send_start({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for data in self._rest:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def event_stream(request: Request, frames: AsyncGenerator[bytes]) -> EventStream:
    """The response for ``frames``, once the first is known; raises what comes instead of it, or ClientDisconnected."""
    try:
        first = await unless_disconnected(request.receive, _next(frames))
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(first, frames)


async def _next(frames: AsyncGenerator[bytes]) -> bytes:
    return await anext(frames)
