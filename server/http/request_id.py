"""RequestId: what an API request is called, by the server and by its client.

Every answer to a generation request carries its id in the header X-Request-Id, whatever becomes of it. A client may
bring an id of its own in that header; the server's ids stay what the engine sees.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import bad_request
from server.observation.current import current_record

HEADER = "x-request-id"
MAX_CHARACTERS = 128
STATE_KEY = "request_id"  # in the state of an ASGI scope, once the id is known


@dataclass(frozen=True, slots=True)
class RequestId:
    """``own`` is the server's and unique; ``chosen`` is the client's, if it brought one."""

    own: str
    chosen: str | None = None

    @property
    def shown(self) -> str:
        return self.own if self.chosen is None else self.chosen


def identify(request: Request, prefix: str) -> RequestId:
    """The id of a new request; its answer will show it. ApiError 400 for a header that is no id."""
    chosen = request.headers.get(HEADER)
    if chosen is not None and not _is_id(chosen):
        raise bad_request(f"X-Request-Id: must be 1 to {MAX_CHARACTERS} printable ASCII characters", "X-Request-Id")
    request_id = RequestId(f"{prefix}-{uuid.uuid4().hex}", chosen)
    request.scope["state"][STATE_KEY] = request_id.shown
    if (record := current_record()) is not None:
        record.own_id, record.shown_id = request_id.own, request_id.shown
    return request_id


def _is_id(text: str) -> bool:
    return 0 < len(text) <= MAX_CHARACTERS and text.isascii() and text.isprintable()


def request_id_header(scope: Scope) -> dict[str, str]:
    """The header that shows the id of the request, if it has one by now."""
    shown = scope.get("state", {}).get(STATE_KEY)
    return {} if shown is None else {HEADER: shown}


class ShowRequestId:
    """ASGI middleware: adds the header to whatever is answered, refusals before any route included.

    A request that generates nothing has no id of the server's: it is called what its client calls it, if anything.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        if scope["type"] == "http" and (chosen := _chosen(scope)) is not None:
            state[STATE_KEY] = chosen
            if (record := current_record()) is not None:
                record.shown_id = chosen

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in request_id_header(scope).items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, send_with_id)


def _chosen(scope: Scope) -> str | None:
    """The id that the client brought, if it is one."""
    for name, value in scope["headers"]:
        if name == HEADER.encode():
            text = str(value, "latin-1")
            return text if _is_id(text) else None
    return None
