"""What every error becomes on its way out: OpenAI's error object, or Anthropic's for a client of /v1/messages.

Knows paths and shapes, not causes. Invariant: nothing leaves the app as a framework's own error, and an exception that
nobody expected shows the client no more than that it happened.
"""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from server.anthropic.errors import anthropic_error_response
from server.errors import ApiError, from_http, internal_error
from server.http.disconnect import ClientDisconnected
from server.http.request_id import request_id_header
from server.observation.current import note_error
from server.observation.request_record import CLIENT_CLOSED_REQUEST

ANTHROPIC_PATH = "/v1/messages"


def error_response(error: ApiError, path: str) -> Response:
    """The whole answer, in the shape that clients of ``path`` read."""
    note_error(error.kind)
    if path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/"):
        return anthropic_error_response(error)
    return error.response()


def install_error_handlers(app: Starlette) -> None:
    """Make every error that leaves the app an error object."""

    async def on_api_error(request: Request, error: Any) -> Response:
        return error_response(error, request.url.path)

    async def on_http_error(request: Request, error: Any) -> Response:
        path = request.url.path
        if error.status_code == 404:
            return error_response(ApiError(404, f"no such route: {request.method} {path}", code="not_found"), path)
        if error.status_code == 405 and request.method == "OPTIONS":
            return Response(status_code=204, headers=error.headers)  # it asks which methods there are
        if error.status_code == 405:
            detail = f"{path} does not answer {request.method}"
            return error_response(ApiError(405, detail, code="method_not_allowed", headers=error.headers), path)
        return error_response(from_http(error), path)

    async def on_disconnect(request: Request, error: Exception) -> Response:
        """Nobody reads this; the status is for the access log."""
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def on_exception(request: Request, error: Exception) -> Response:
        """A bug: what it says is for the log. No middleware sees this answer."""
        response = error_response(internal_error(), request.url.path)
        response.headers.update(request_id_header(request.scope))
        return response

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_exception)
    app.add_exception_handler(ClientDisconnected, on_disconnect)
    app.add_exception_handler(ClientDisconnect, on_disconnect)  # while it still sent its body
