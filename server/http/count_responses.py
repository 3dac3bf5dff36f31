"""CountResponses: ASGI middleware that counts the answers of the app by route and status.

Invariants: a route is named by its template, whatever was asked for, so that there are no more series than routes and
statuses; an answer is counted once, as it begins, so that the tokens of a stream cost nothing here; one that ends in a
bug is a 500.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.metrics.catalogue import OTHER_ROUTE
from server.metrics.metrics import Metrics

EXPECTED = (200,)  # statuses that are shown before they were ever answered
EXPECTED_OF_POST = (200, 400, 429, 500, 503)


class CountResponses:
    """Tells ``metrics`` of every answer. ``routes`` may still grow until the first request."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._fixed = {route.path: route.path for route in self._routes if not route.param_convertors}
        self._with_parameters = [route for route in self._routes if route.param_convertors]
        for route in self._routes:
            for status in EXPECTED_OF_POST if "POST" in (route.methods or ()) else EXPECTED:
                metrics.expect_response(route.path, status)
        metrics.expect_response(OTHER_ROUTE, 404)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._metrics.count_response(self._name(scope["path"]), message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        except Exception:
            if not begun:
                self._metrics.count_response(self._name(scope["path"]), 500)
            raise

    def _name(self, path: str) -> str:
        if path in self._fixed:
            return path
        for route in self._with_parameters:
            if route.path_regex.match(path):
                return route.path
        return OTHER_ROUTE
