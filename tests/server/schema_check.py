"""SchemaCheck: every answer that passes is held against the schema that OpenAI publishes for its endpoint.

An ASGI app around the one under test, so that no test can forget it. What is wrong is kept in ``problems``, which the
fixture looks at when the test is over.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCHEMAS = Path(__file__).parent / "openai_schemas.json"

PLAIN = {
    "/v1/completions": "CreateCompletionResponse",
    "/v1/chat/completions": "CreateChatCompletionResponse",
    "/v1/embeddings": "CreateEmbeddingResponse",
    "/v1/responses": "Response",
    "/v1/models": "ListModelsResponse",
}
STREAMED = {
    "/v1/completions": "CreateCompletionResponse",  # a chunk is a whole object there
    "/v1/chat/completions": "CreateChatCompletionStreamResponse",
}


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Of the schema ``name`` of the document."""
    definitions = json.loads(SCHEMAS.read_text())["$defs"]
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


@cache
def _event_schemas() -> dict[str, str]:
    """The schema of each event of a streamed response, by its type."""
    definitions = json.loads(SCHEMAS.read_text())["$defs"]
    names = [one["$ref"].rpartition("/")[2] for one in definitions["ResponseStreamEvent"]["anyOf"]]
    return {kind: name for name in names for kind in definitions[name]["properties"]["type"]["enum"]}


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
            error = jsonschema.exceptions.best_match(validator(name).iter_errors(value))
            if error is not None:
                self.problems.append(f"{path} {status}: {error.json_path} of {name}: {error.message[:300]}")


def _answers(path: str, status: int, kind: str, body: bytes) -> Iterator[tuple[str, Any]]:
    """Each object of an answer, with the schema it must have."""
    if not path.startswith("/v1/"):
        return
    if kind.startswith("text/event-stream"):
        for line in body.split(b"\n"):
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                value = orjson.loads(line[6:])
                if "error" in value and value.get("type") is None:
                    yield "ErrorResponse", value
                elif path in STREAMED:
                    yield STREAMED[path], _without_nulls(path, value)
                elif path == "/v1/responses":
                    if value.get("response", {}).get("usage", 0) is None:  # in the document's own examples too
                        del value["response"]["usage"]
                    yield _event_schemas()[value["type"]], value
    elif path.startswith("/v1/messages"):
        return  # another vendor's API
    elif status >= 400:
        yield "ErrorResponse", orjson.loads(body)
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


def _without_nulls(path: str, chunk: dict[str, Any]) -> dict[str, Any]:
    """The chunk as the schemas would have it: they forbid some nulls that their own descriptions, and OpenAI, demand.

    ``usage`` is null in all chunks but the last if it was asked for, ``logprobs`` where they were not, a chat's
    ``logprobs.refusal`` where they were, and ``finish_reason`` in all chunks of a choice but its last.
    """
    choices = [{k: v for k, v in choice.items() if k != "logprobs" or v is not None} for choice in chunk["choices"]]
    for choice in choices:
        choice["finish_reason"] = choice["finish_reason"] or "stop"  # a missing key still fails, here
        if path == "/v1/completions":
            choice.setdefault("logprobs", None)
        elif choice.get("logprobs", {}).get("refusal", 0) is None:
            choice["logprobs"] = choice["logprobs"] | {"refusal": []}
    choices = [_without_first_null(choice) for choice in choices]
    return {k: v for k, v in chunk.items() if k != "usage" or v is not None} | {"choices": choices}


def _without_first_null(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice without what an echo says of the first token of the prompt: null, as OpenAI has it too."""
    logprobs = choice.get("logprobs")
    if logprobs is None or logprobs.get("token_logprobs", [])[:1] != [None]:
        return choice
    lists = {name: logprobs[name][1:] for name in ("token_logprobs", "top_logprobs")}
    return choice | {"logprobs": logprobs | lists}
