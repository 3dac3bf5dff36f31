"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: adapters come and go while the server runs.

Off unless the operator allowed it: a path that a client names is read by the server. Invariant: a name never stands for
two models.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field, field_validator
from starlette.requests import Request
from starlette.responses import Response

from engine.client import EngineError
from server.errors import ApiError, bad_request, from_engine
from server.openai.body import Body, NeutralValues, parse_body
from server.openai.models import model_object
from server.options import MAX_NAME_CHARACTERS, is_adapter_name
from server.state import ServerState

MAX_PATH_CHARACTERS = 4096


class AdapterBody(Body):
    """The name of an adapter."""

    NEUTRAL: ClassVar[NeutralValues] = {"lora_int_id": ()}

    lora_name: str = Field(min_length=1, max_length=MAX_NAME_CHARACTERS)

    @field_validator("lora_name")
    @classmethod
    def _without_spaces(cls, name: str) -> str:
        if not is_adapter_name(name):
            raise ValueError("must be without spaces and control characters")
        return name


class LoadAdapterBody(AdapterBody):
    """Where an adapter is, as the server sees it. ``load_inplace``: it may replace one of its name."""

    lora_path: str = Field(min_length=1, max_length=MAX_PATH_CHARACTERS)
    load_inplace: bool | None = None


async def load_adapter(state: ServerState, request: Request) -> Response:
    """Load an adapter, which requests can then choose as their model; its model object."""
    body = parse_body(LoadAdapterBody, await _raw(state, request))
    if body.lora_name == state.served_model_name:
        raise bad_request(f"lora_name: {body.lora_name!r} is the model itself", "lora_name", "adapter_exists")
    if not Path(body.lora_path).is_absolute() or "\0" in body.lora_path:
        raise bad_request(f"lora_path: must be an absolute path, not {body.lora_path!r}", "lora_path")
    try:
        await state.client.load_adapter(body.lora_name, body.lora_path, replaces=body.load_inplace is True)
    except EngineError as error:
        raise from_engine(error) from None
    return Response(orjson.dumps(model_object(state, body.lora_name)), media_type="application/json")


async def unload_adapter(state: ServerState, request: Request) -> Response:
    """Let go of an adapter. Requests that use it may finish; ApiError 404 where there is none of that name."""
    body = parse_body(AdapterBody, await _raw(state, request))
    try:
        await state.client.unload_adapter(body.lora_name)
    except EngineError as error:
        raise from_engine(error) from None
    answer = {"id": body.lora_name, "object": "model", "deleted": True}
    return Response(orjson.dumps(answer), media_type="application/json")


async def _raw(state: ServerState, request: Request) -> bytes:
    """The body; ApiError 403 where adapters may not change, 503 where they cannot now."""
    if not state.loads_adapters:
        message = "adapters come and go only where the server was started with --enable-lora"
        raise ApiError(403, message, code="adapters_fixed")
    state.require_ready()
    return await request.body()
