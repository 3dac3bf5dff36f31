"""ASGI middleware that keeps a RequestRecord of each API request, from the first to the last thing done for it.

Knows paths, statuses and clocks. Invariants: what a stream sends after its start costs nothing here; nothing is kept of
a header but traceparent and tracestate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.observation.current import begin, current_record
from server.observation.journal import RequestJournal
from server.observation.request_record import RequestRecord

TRACE_HEADERS = {b"traceparent": "traceparent", b"tracestate": "tracestate"}
INTERNAL_ERROR = "internal_error"


class RecordRequests:
    """The outermost of the app's own. ``is_api`` tells by a path whether it is worth a record; ``paths``: those there
    are, without parameters.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        journal: RequestJournal,
        is_api: Callable[[str], bool],
        paths: Callable[[], Iterable[str]],
    ) -> None:
        self._app = app
        self._journal = journal
        self._is_api = is_api
        self._find_paths = paths
        self._paths: frozenset[str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or not self._is_api(scope["path"]):
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            method=scope["method"],
            path=scope["path"],
            scheme=scope["scheme"],
            trace_headers=_trace_headers(scope),
            expect=self._journal.expect,
        )
        begin(record)

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        except Exception:
            record.error_code = INTERNAL_ERROR
            record.status = record.status or 500  # the answer comes from further out
            raise
        finally:
            record.ended = time.monotonic()
            if record.route is None and self._is_path(record.path):
                record.route = record.path  # refused before the router saw it
            self._journal.answer_ended(record)

    def _is_path(self, path: str) -> bool:
        if self._paths is None:
            self._paths = frozenset(self._find_paths())  # not before: routes come after middleware
        return path in self._paths


class NoteRoute:
    """The innermost: notes which route was taken."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            record, route = current_record(), scope.get("route")
            if record is not None and route is not None:
                record.route = route.path


def _trace_headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if (known := TRACE_HEADERS.get(name)) is not None:
            text = value.decode("latin-1")
            # several tracestate headers are one list, as RFC 9110 has it; of traceparent there must be one
            found[known] = f"{found[known]},{text}" if known in found else text
    return found
