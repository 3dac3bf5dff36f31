"""GET /v1/models and /v1/models/{id}: the model this server serves, and its adapters."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from server.state import ServerState


def list_models(state: ServerState) -> Response:
    """The model first, then its adapters in the order they were loaded."""
    names = [state.served_model_name, *state.client.adapters]
    listed = {"object": "list", "data": [model_object(state, name) for name in names]}
    return Response(orjson.dumps(listed), media_type="application/json")


def retrieve_model(state: ServerState, model: str) -> Response:
    """One of them by its id, which may contain slashes; ApiError 404 for any other."""
    state.require_model(model)
    return Response(orjson.dumps(model_object(state, model)), media_type="application/json")


def model_object(state: ServerState, name: str) -> dict[str, object]:
    """The API's object of the model or of an adapter, which has a ``parent``, and a ``root`` where its files are."""
    fields: dict[str, object] = {"id": name, "object": "model", "created": state.created, "owned_by": "octavo"}
    adapter = state.client.adapters.get(name)
    if adapter is None:
        return fields
    return {**fields, "root": adapter.path, "parent": state.served_model_name}
