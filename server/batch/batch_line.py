"""BatchLine: one request of a batch file in the OpenAI format, and the line that answers it.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    {"id": "...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

Knows the format; bodies are the endpoints' business.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from server.http.nesting import MAX_DEPTH, is_deeper

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_ID_CHARACTERS = 512
FIELDS = {"custom_id", "method", "url", "body"}


class BatchError(Exception):
    """A file that can't be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request; ``body`` is JSON."""

    custom_id: str
    url: str
    body: bytes

    @classmethod
    def parse(cls, line: bytes) -> BatchLine:
        """Raises BatchError, without saying where the line is."""
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise BatchError(f"not valid JSON: {error}") from None
        if not isinstance(fields, dict):
            raise BatchError("not a JSON object")
        for name in sorted(FIELDS - fields.keys()):
            raise BatchError(f"{name} is missing")
        for name in sorted(fields.keys() - FIELDS):
            raise BatchError(f"unknown field {name[:40]!r}")
        custom_id, body = fields["custom_id"], fields["body"]
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARACTERS:
            raise BatchError(f"custom_id must be a string of 1 to {MAX_ID_CHARACTERS} characters")
        if fields["method"] != "POST":
            raise BatchError('method must be "POST"')
        if fields["url"] not in URLS:
            raise BatchError(f"url must be one of {', '.join(URLS)}")
        if not isinstance(body, dict):
            raise BatchError("body must be a JSON object")
        if is_deeper(body):
            raise BatchError(f"body is nested deeper than {MAX_DEPTH} levels")
        if body.get("stream"):
            raise BatchError("body.stream: a batch has no streams")
        return cls(custom_id, fields["url"], orjson.dumps(body))

    def answer(self, status: int, request_id: str | None, body: bytes) -> bytes:
        """The line of the output, its line break included. ``body`` is the endpoint's answer."""
        response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
        fields: dict[str, Any] = {
            "id": f"batch_req_{hashlib.sha256(self.custom_id.encode()).hexdigest()[:24]}",
            "custom_id": self.custom_id,
            "response": response,
            "error": None,
        }
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
