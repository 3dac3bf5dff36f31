"""The server's own OpenAPI document, made from the bodies that validate its requests.

Knows which body belongs to which route; what a body accepts is its own schema. Answers are objects: for the routes of
the OpenAI API that vendor's document says of what fields.
"""

from __future__ import annotations

import copy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from server.anthropic.message_body import CountBody, MessageBody
from server.auth import LOAD_ADAPTER, UNLOAD_ADAPTER
from server.openai.adapters import AdapterBody, LoadAdapterBody
from server.openai.body import Body
from server.openai.chat_body import ChatBody
from server.openai.completion_body import CompletionBody
from server.openai.embedding_body import EmbeddingBody
from server.openai.responses.response_body import ResponseBody
from server.tokenization.tokenize_body import DetokenizeBody, TokenizeBody

BODIES: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/embeddings": EmbeddingBody,
    "/v1/responses": ResponseBody,
    "/v1/messages": MessageBody,
    "/v1/messages/count_tokens": CountBody,
    LOAD_ADAPTER: LoadAdapterBody,
    UNLOAD_ADAPTER: AdapterBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document of all routes of ``app``."""
    document = get_openapi(title=app.title, version=app.version, routes=[_without_head(one) for one in app.routes])
    names, definitions = models_json_schema(
        [(body, "validation") for body in BODIES.values()], ref_template="#/components/schemas/{model}"
    )
    document["components"] = {"schemas": {**definitions["$defs"], "Error": ERROR}}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "post" and path in BODIES:
                schema = names[BODIES[path], "validation"]
                operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
            operation["responses"] = {
                "200": operation["responses"]["200"],
                "default": {
                    "description": "what was wrong, or why it cannot be answered now",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                },
            }
    return document


def _without_head(route: BaseRoute) -> BaseRoute:
    """What answers GET answers HEAD too, which a document need not repeat."""
    if not isinstance(route, APIRoute):
        return route
    shown = copy.copy(route)
    shown.methods = set(route.methods or ()) - {"HEAD"}
    return shown
