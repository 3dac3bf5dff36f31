"""create_app: the routes of one server over its ServerState.

Knows which path does what, and leaves the doing to the modules it names. Routes take the raw request: bodies are parsed
by `server.openai.body`, which is stricter than a framework's own validation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.client import EngineState
from server.anthropic.messages import count_message_tokens, create_message
from server.auth import LOAD_ADAPTER, UNLOAD_ADAPTER, RequireKeys, is_guarded
from server.dashboard.routes import add_dashboard_routes
from server.errors import unavailable
from server.http.body_limit import BodyLimit
from server.http.count_responses import CountResponses
from server.http.error_answers import install_error_handlers
from server.http.request_id import HEADER as REQUEST_ID_HEADER
from server.http.request_id import ShowRequestId
from server.observation.record_requests import NoteRoute, RecordRequests
from server.openai.adapters import load_adapter, unload_adapter
from server.openai.chat import create_chat_completion
from server.openai.completions import create_completion
from server.openai.embeddings import create_embeddings
from server.openai.models import list_models, retrieve_model
from server.openai.requests import list_requests, retrieve_request
from server.openai.responses.create import create_response
from server.openai.responses.stored import cancel_response, delete_response, list_input_items, retrieve_response
from server.state import ServerState
from server.tokenization.detokenize import detokenize
from server.tokenization.tokenize import tokenize
from server.tokenization.tokenizer_info import tokenizer_info
from server.version import octavo_version

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig  # not in every version that serves

READING = ["GET", "HEAD"]

# The framework's own spans and logs would tell messages of exceptions; ours are in server.tracing.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


def create_app(state: ServerState) -> FastAPI:
    """The ASGI app that serves ``state``."""
    version = octavo_version()
    app = FastAPI(
        title="Octavo",
        version=version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=NO_TELEMETRY,
    )
    app.add_middleware(NoteRoute)
    app.add_middleware(BodyLimit, limit=state.body_limit)
    if state.api_keys or state.admin_key:
        # nothing of a stranger is read but what he calls his request
        app.add_middleware(RequireKeys, api_keys=state.api_keys, admin_key=state.admin_key)
    app.add_middleware(ShowRequestId)
    if state.allowed_origins:
        # further out still: browsers ask what is allowed without a key, and read no answer that does not say so
        app.add_middleware(
            CORSMiddleware,
            allow_origins=state.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, "retry-after"],
        )
    app.add_middleware(CountResponses, metrics=state.metrics, routes=app.routes)  # sees whatever is answered
    app.add_middleware(RecordRequests, journal=state.journal, is_api=is_guarded, paths=lambda: _paths(app))
    install_error_handlers(app)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await create_completion(state, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await create_chat_completion(state, request)

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        return await create_embeddings(state, request)

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await create_response(state, request)

    @app.api_route("/v1/responses/{response_id}", methods=READING)
    async def response(request: Request, response_id: str) -> Response:
        return retrieve_response(state, request, response_id)

    @app.delete("/v1/responses/{response_id}")
    async def response_deletion(request: Request, response_id: str) -> Response:
        return delete_response(state, request, response_id)

    @app.post("/v1/responses/{response_id}/cancel")
    async def response_cancellation(request: Request, response_id: str) -> Response:
        return cancel_response(state, request, response_id)

    @app.api_route("/v1/responses/{response_id}/input_items", methods=READING)
    async def response_input(request: Request, response_id: str) -> Response:
        return list_input_items(state, request, response_id)

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        return await create_message(state, request)

    @app.post("/v1/messages/count_tokens")
    async def message_tokens(request: Request) -> Response:
        return await count_message_tokens(state, request)

    @app.api_route("/v1/models", methods=READING)
    async def models() -> Response:
        return list_models(state)

    @app.api_route("/v1/models/{model:path}", methods=READING)
    async def model(model: str) -> Response:
        return retrieve_model(state, model)

    @app.post(LOAD_ADAPTER)
    async def adapter_load(request: Request) -> Response:
        return await load_adapter(state, request)

    @app.post(UNLOAD_ADAPTER)
    async def adapter_unload(request: Request) -> Response:
        return await unload_adapter(state, request)

    @app.api_route("/v1/requests", methods=READING)
    async def requests(request: Request) -> Response:
        return await list_requests(state, request)

    @app.api_route("/v1/requests/{name:path}", methods=READING)
    async def one_request(request: Request, name: str) -> Response:
        return await retrieve_request(state, request, name)

    @app.post("/tokenize")
    async def tokens_of_text(request: Request) -> Response:
        return await tokenize(state, request)

    @app.post("/detokenize")
    async def text_of_tokens(request: Request) -> Response:
        return await detokenize(state, request)

    @app.api_route("/tokenizer_info", methods=READING)
    async def vocabulary() -> Response:
        return tokenizer_info(state)

    @app.api_route("/openapi.json", methods=READING, include_in_schema=False)
    async def document() -> Response:
        from server.openapi import openapi_document  # with what makes it, once somebody asks

        return Response(orjson.dumps(openapi_document(app)), media_type="application/json")

    @app.api_route("/health", methods=READING)
    async def health() -> Response:
        """200 while the engine is alive and moving, a shutdown included; else 503."""
        if state.client.state is not EngineState.READY:
            raise unavailable(f"the engine is {state.client.state.value}", "engine_unavailable")
        state.require_movement()
        return Response(orjson.dumps({"status": "ok"}), media_type="application/json")

    @app.api_route("/ready", methods=READING)
    async def ready() -> Response:
        """200 while new requests are taken and the engine moves; else 503."""
        state.require_ready()
        state.require_movement()
        return Response(orjson.dumps({"status": "ready"}), media_type="application/json")

    @app.api_route("/metrics", methods=READING)
    async def metrics() -> Response:
        return Response(await state.metrics.scrape(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.api_route("/version", methods=READING)
    async def server_version() -> Response:
        return Response(orjson.dumps({"version": version}), media_type="application/json")

    add_dashboard_routes(app, state)
    return app


def _paths(app: FastAPI) -> list[str]:
    """Of all routes that have no parameters."""
    return [route.path for route in app.routes if isinstance(route, Route) and "{" not in route.path]
