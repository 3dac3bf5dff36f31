"""ApiError and the OpenAI error object that every error becomes.

Knows HTTP and nothing about generation. Invariants: a body is always ``{"error": {"message", "type", "param",
"code"}}``, with strings or null inside; an unexpected exception shows the client no more than that it happened.
"""

from __future__ import annotations

import http
import math
from collections.abc import Mapping

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engine.client import AdapterRefused, EngineDied, EngineError, EngineUnavailable, RequestTooLarge
from engine.messages import Failure

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
SERVER_ERROR = "server_error"
RETRY_AFTER_SECONDS = 1
MAX_SHOWN_CHARACTERS = 200  # of what a client sent
MAX_RETRY_AFTER_SECONDS = 120  # clients take more for a mistake
UNKNOWN_ADAPTER = "unknown_adapter"
CONTEXT_EXCEEDED = "context_length_exceeded"
NO_RETRY = {"x-should-retry": "false"}  # to clients that come again by themselves


class ApiError(Exception):
    """An error with its HTTP status and the fields of its error object; ``message`` is for the client to read."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        if self.status == 429:
            return RATE_LIMIT
        return INVALID_REQUEST if self.status < 500 else SERVER_ERROR

    @property
    def kind(self) -> str:
        """What it is, for those who count and sort errors: the code, or else the type."""
        return self.code or self.type

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer. What is wrong with the request itself says so to clients that would come again."""
        headers = {**NO_RETRY, **self.headers} if self.type == INVALID_REQUEST else self.headers
        return Response(orjson.dumps(self.body()), self.status, headers, "application/json")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request is wrong in itself."""
    return ApiError(400, message, param=param, code=code)


def context_exceeded(param: str, context: int, why: str) -> ApiError:
    """A 400 for a field of the request that no context of so many tokens holds; in words that clients look for."""
    message = f"{param}: this model's maximum context length is {context} tokens; {why}"
    return bad_request(message, param, CONTEXT_EXCEEDED)


def unavailable(message: str, code: str) -> ApiError:
    """A 503: the same request may work a moment later."""
    return ApiError(503, message, code=code, headers={"retry-after": str(RETRY_AFTER_SECONDS)})


def model_not_found(model: str, served: str, num_adapters: int = 0) -> ApiError:
    """A 404 for a model that is not served here."""
    adapters = f" and {num_adapters} {'adapter' if num_adapters == 1 else 'adapters'}" if num_adapters else ""
    message = f"the model {model[:MAX_SHOWN_CHARACTERS]!r} does not exist; this server serves {served!r}{adapters}"
    return ApiError(404, message, param="model", code="model_not_found")


def internal_error() -> ApiError:
    """A 500 that says nothing about what went wrong inside."""
    return ApiError(500, "the server hit an internal error; its log has the details", code="internal_error")


def from_engine(error: EngineError, prompt: str | None = None) -> ApiError:
    """What a failure of the engine means to the client; ``prompt`` is the field that has the request's."""
    if isinstance(error, RequestTooLarge):
        return bad_request(str(error), prompt if error.code == CONTEXT_EXCEEDED else None, error.code)
    if isinstance(error, AdapterRefused):
        return ApiError(404 if error.code == UNKNOWN_ADAPTER else 400, str(error), code=error.code)
    if isinstance(error, EngineUnavailable):
        return unavailable(str(error), "engine_unavailable")
    if isinstance(error, EngineDied):
        return ApiError(500, str(error), code="engine_died")
    return ApiError(500, str(error), code="engine_error")


def from_failure(failure: Failure) -> ApiError:
    """What the client reads of a request that the engine ended without a result."""
    code, message = failure.code, failure.message
    if code == "queue_full":
        seconds = min(MAX_RETRY_AFTER_SECONDS, max(RETRY_AFTER_SECONDS, math.ceil(failure.retry_after or 0.0)))
        return ApiError(429, message, code=code, headers={"retry-after": str(seconds)})
    if code == "queue_timeout":
        return unavailable(message, code)
    if code == "timeout":
        # the client said how long it would wait: it does not want to begin again
        return ApiError(504 if failure.started else 503, message, code=code, headers=NO_RETRY)
    if code == "invalid_grammar":
        return bad_request(message, code=code)
    if code == UNKNOWN_ADAPTER:
        return ApiError(404, message, param="model", code="model_not_found")  # it was there when the request came
    if code == "never_fits":
        return bad_request(message, code="kv_capacity_exceeded")
    return ApiError(500, message, code=code if code == "step_failed" else "engine_error")


def from_http(error: HTTPException) -> ApiError:
    """The router's own errors: no such route, wrong method."""
    phrase = http.HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    return ApiError(error.status_code, str(error.detail or phrase), code=code, headers=error.headers)
