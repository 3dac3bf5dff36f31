"""Anthropic's error object, from an ApiError."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from server.errors import INVALID_REQUEST, NO_RETRY, ApiError

INVALID = "invalid_request_error"
INTERNAL = "api_error"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: ApiError) -> dict[str, object]:
    """The error object; the message names the field, for which this shape has no place."""
    kind = TYPES.get(error.status, INVALID if error.status < 500 else INTERNAL)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def anthropic_error_response(error: ApiError) -> Response:
    """The whole answer, with the status and headers that OpenAI's shape has too."""
    headers = {**NO_RETRY, **error.headers} if error.type == INVALID_REQUEST else error.headers
    return Response(orjson.dumps(anthropic_error(error)), error.status, headers, "application/json")
