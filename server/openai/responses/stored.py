"""GET and DELETE /v1/responses/{id}, its input items, and its cancellation: what is stored, for whom it was stored."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.errors import ApiError, bad_request
from server.openai.responses.response_store import StoredResponse
from server.state import ServerState

DEFAULT_ITEMS = 20
MAX_ITEMS = 100


def retrieve_response(state: ServerState, request: Request, response_id: str) -> Response:
    """The response as it was answered."""
    for name in request.query_params:
        if not (name == "stream" and request.query_params[name] == "false"):
            raise _unsupported(name)
    return Response(_find(state, request, response_id).shown, media_type="application/json")


def delete_response(state: ServerState, request: Request, response_id: str) -> Response:
    """It is gone; what was stored after it is not."""
    found = _find(state, request, response_id)
    state.responses.delete(_tenant(state, request), found.id)
    body = {"id": found.id, "object": "response", "deleted": True}
    return Response(orjson.dumps(body), media_type="application/json")


def cancel_response(state: ServerState, request: Request, response_id: str) -> Response:
    """Always an error: what is stored is over, since nothing runs in the background."""
    _find(state, request, response_id)
    raise bad_request("only a response that was made with background: true can be cancelled, and there are none here")


def list_input_items(state: ServerState, request: Request, response_id: str) -> Response:
    """What the model read, earlier responses included; the newest first, unless ``order`` is asc."""
    items = [item.shown() for item in _find(state, request, response_id).input]
    order, limit, after = _page(request)
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise bad_request(f"after: the response has no input item {after!r}", "after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    body = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
    return Response(orjson.dumps(body), media_type="application/json")


def _page(request: Request) -> tuple[str, int, str | None]:
    """Order, limit and the id of the item before the first."""
    given = dict(request.query_params)
    order, limit, after = given.pop("order", "desc"), given.pop("limit", str(DEFAULT_ITEMS)), given.pop("after", None)
    for name in given:
        raise _unsupported(name)
    if order not in ("asc", "desc"):
        raise bad_request("order: must be asc or desc", "order")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_ITEMS):
        raise bad_request(f"limit: must be an integer from 1 to {MAX_ITEMS}", "limit")
    return order, int(limit), after


def _find(state: ServerState, request: Request, response_id: str) -> StoredResponse:
    found = state.responses.get(_tenant(state, request), response_id)
    if found is None:
        raise ApiError(404, f"no response {response_id!r} of yours is stored", code="response_not_found")
    return found


def _tenant(state: ServerState, request: Request) -> str:
    return state.api_keys.tenant(request.headers.get("authorization"))


def _unsupported(name: str) -> ApiError:
    return bad_request(f"unsupported parameter: {name}", name[:100], "unsupported_parameter")
