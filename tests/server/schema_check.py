"""SchemaCheck: every answer that passes is held against the types that OpenAI's own client for Python has of it.

These types are generated from OpenAI's document of the API, and come with the client from the package index. The check
is an ASGI app around the one under test, so that no test can forget it. What is wrong is kept in ``problems``, which
the fixture looks at when the test is over.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import openai.types as types
import openai.types.chat as chat
import openai.types.responses as responses
import orjson
from pydantic import TypeAdapter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TYPES: dict[str, Any] = {
    "Completion": types.Completion,
    "ChatCompletion": chat.ChatCompletion,
    "ChatCompletionChunk": chat.ChatCompletionChunk,
    "CreateEmbeddingResponse": types.CreateEmbeddingResponse,
    "Response": responses.Response,
    "ResponseStreamEvent": responses.ResponseStreamEvent,
    "Model": types.Model,
    "ErrorObject": types.ErrorObject,
}
# Keys that may be null, but that the document demands; the client would not miss them.
ALWAYS_THERE = {
    "ErrorObject": ("code", "param"),
    "Choice": ("finish_reason", "logprobs"),
    "CompletionChoice": ("logprobs",),
}

PLAIN = {
    "/v1/completions": "Completion",
    "/v1/chat/completions": "ChatCompletion",
    "/v1/embeddings": "CreateEmbeddingResponse",
    "/v1/responses": "Response",
}
STREAMED = {
    "/v1/completions": "Completion",  # a chunk is a whole object there
    "/v1/chat/completions": "ChatCompletionChunk",
}


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Of the type ``name``."""
    schema = TypeAdapter(TYPES[name]).json_schema()
    for one, definition in {name: schema, **schema.get("$defs", {})}.items():
        if one in ALWAYS_THERE:
            definition["required"] = [*definition["required"], *ALWAYS_THERE[one]]
    return jsonschema.Draft202012Validator(schema)


@cache
def _event_validator(kind: str) -> jsonschema.Draft202012Validator:
    """Of a streamed response's event of this type; KeyError for a type that is not known."""
    schema = validator("ResponseStreamEvent").schema
    names = {
        definition["properties"]["type"]["const"]: name
        for name in (one["$ref"].rpartition("/")[2] for one in schema["anyOf"])
        for definition in [schema["$defs"][name]]
    }
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{names[kind]}", "$defs": schema["$defs"]})


class SchemaCheck:
    """``problems`` has a line for every answer that is not what its schema says; ``num_checked`` counts answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.problems: list[str] = []
        self.num_checked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, kind, body = 0, "", b""

        async def watch(message: Message) -> None:
            nonlocal status, kind, body
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = dict(message["headers"]).get(b"content-type", b"").decode()
            elif scope["method"] != "HEAD":
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    self._check(scope["path"], status, kind, body)
            await send(message)

        await self._app(scope, receive, watch)

    def _check(self, path: str, status: int, kind: str, body: bytes) -> None:
        for name, value in _answers(path, status, kind, body):
            self.num_checked += 1
            schema = validator(name) if name in TYPES else _event_validator(name)
            error = jsonschema.exceptions.best_match(schema.iter_errors(value))
            if error is not None:
                self.problems.append(f"{path} {status}: {error.json_path} of {name}: {error.message[:300]}")


def _answers(path: str, status: int, kind: str, body: bytes) -> Iterator[tuple[str, Any]]:
    """Each object of an answer, with the type it must have: one of TYPES, or that of an event."""
    if not path.startswith("/v1/"):
        return
    if kind.startswith("text/event-stream"):
        for line in body.split(b"\n"):
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                value = orjson.loads(line[6:])
                if "error" in value and value.get("type") is None:
                    yield "ErrorObject", value["error"]
                elif path in STREAMED:
                    yield STREAMED[path], _as_whole(path, value)
                elif path == "/v1/responses":
                    yield value["type"], value
    elif path.startswith("/v1/messages"):
        return  # another vendor's API
    elif status >= 400:
        yield "ErrorObject", orjson.loads(body)["error"]
    elif path == "/v1/models" and status == 200:
        yield from (("Model", one) for one in orjson.loads(body)["data"])
    elif path in PLAIN and status == 200:
        value = orjson.loads(body)
        if path == "/v1/embeddings":  # the schema knows no base64
            value["data"] = [one | {"embedding": _floats(one["embedding"])} for one in value["data"]]
        if path == "/v1/completions":
            value["choices"] = [_without_first_null(choice) for choice in value["choices"]]
        yield PLAIN[path], value
    elif path.startswith("/v1/models/"):
        yield "Model", orjson.loads(body)


def _floats(embedding: str | list[float]) -> list[float]:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), "<f4").tolist()
    return embedding


def _as_whole(path: str, chunk: dict[str, Any]) -> dict[str, Any]:
    """A completion's chunk as if it were the last of its choices: others have no reason yet, for which no type is."""
    if path != "/v1/completions":
        return chunk
    choices = [choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]]
    return chunk | {"choices": [_without_first_null(choice) for choice in choices]}


def _without_first_null(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice without what an echo says of the first token of the prompt: null, as OpenAI has it too."""
    logprobs = choice.get("logprobs")
    if logprobs is None or logprobs.get("token_logprobs", [])[:1] != [None]:
        return choice
    lists = {name: logprobs[name][1:] for name in ("token_logprobs", "top_logprobs")}
    return choice | {"logprobs": logprobs | lists}
