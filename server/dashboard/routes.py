"""The routes of the page map, which are not part of the API that /openapi.json describes."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from server.dashboard.details import page_detail, request_detail
from server.dashboard.page_source import PageSource
from server.http.sse import HEADERS, EventStream, event_stream
from server.state import ServerState

READING = ["GET", "HEAD"]


def add_dashboard_routes(app: FastAPI, state: ServerState) -> None:
    """Serve the page map of ``state``. `server.auth` keeps strangers from what is below /dashboard/."""
    source = PageSource.read()

    @app.api_route("/dashboard", methods=READING, include_in_schema=False)
    async def page() -> Response:
        return Response(source.body, headers=source.headers, media_type="text/html")

    @app.api_route("/dashboard/feed", methods=READING, include_in_schema=False)
    async def feed(request: Request) -> Response:
        if request.method == "HEAD":  # of an answer without an end, so nobody begins to watch
            return Response(headers=HEADERS, media_type=EventStream.media_type)
        return await event_stream(request, state.page_map.watch())

    @app.api_route("/dashboard/pages/{page}", methods=READING, include_in_schema=False)
    async def one_page(page: str) -> Response:
        return await page_detail(state, page)

    @app.api_route("/dashboard/requests/{name:path}", methods=READING, include_in_schema=False)
    async def one_sequence(name: str) -> Response:
        return await request_detail(state, name)
