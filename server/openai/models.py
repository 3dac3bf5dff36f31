"""GET /v1/models and /v1/models/{id}: the one model this server serves."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from server.state import ServerState


def list_models(state: ServerState) -> Response:
    """All models, which is one."""
    return Response(orjson.dumps({"object": "list", "data": [_model(state)]}), media_type="application/json")


def retrieve_model(state: ServerState, model: str) -> Response:
    """One model by its id, which may contain slashes; ApiError 404 for any other."""
    state.require_model(model)
    return Response(orjson.dumps(_model(state)), media_type="application/json")


def _model(state: ServerState) -> dict[str, object]:
    return {"id": state.served_model_name, "object": "model", "created": state.created, "owned_by": "octavo"}
