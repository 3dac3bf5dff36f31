"""ASGI middleware: a request body larger than the limit is refused with 413, declared or not.

Knows sizes only. Invariant: no more than ``limit`` bytes of a body reach the app, whatever Content-Length says.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError


class BodyLimit:
    """Raises ApiError 413 where the app reads the body, so that the app's own handler answers."""

    def __init__(self, app: ASGIApp, *, limit: Callable[[], int]) -> None:
        self._app = app
        self._current_limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = _content_length(scope)
        received = 0
        limit = self._current_limit()

        async def limited_receive() -> Message:
            nonlocal received
            if declared > limit:
                raise _too_large(limit)
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            return message

        await self._app(scope, limited_receive, send)


def _too_large(limit: int) -> ApiError:
    message = f"the request body is larger than {limit} bytes, the limit of this server (--max-request-bytes)"
    # What is left of the body is not read, so the connection cannot be used again.
    return ApiError(413, message, code="request_too_large", headers={"connection": "close"})


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
