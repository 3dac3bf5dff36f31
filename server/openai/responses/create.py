"""POST /v1/responses, plain and streamed: a chat, whose answer is shown as items and stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.answer_events import event_frames
from server.errors import bad_request
from server.http.disconnect import unless_disconnected
from server.http.request_id import identify
from server.http.sse import event_stream
from server.openai.body import parse_body, validate_body
from server.openai.chat_body import ChatBody
from server.openai.chat_session import open_chat
from server.openai.responses.items import Item, ItemReference, MessageItem, read_item
from server.openai.responses.response_body import CHAT_NAMES, ResponseBody
from server.openai.responses.response_events import ResponseEvents, output_items
from server.openai.responses.response_object import ResponseObject
from server.openai.responses.response_store import StoredResponse
from server.state import ServerState


async def create_response(state: ServerState, request: Request) -> Response:
    """One response: what the assistant says next, or which functions it calls."""
    request_id = identify(request, "resp")
    ready, _ = state.require_ready()
    body = parse_body(ResponseBody, await request.body(), ready.max_model_len)
    tenant = state.api_keys.tenant(request.headers.get("authorization"))
    items = (*_earlier_items(state, tenant, body), *_new_items(state, tenant, body))
    with CHAT_NAMES.told():
        chat = validate_body(ChatBody, body.chat_fields(items))
        session = await open_chat(state, request, chat, request_id)
    response = ResponseObject(session.request_id, session.created, chat.model, body, chat)
    keep = _keeper(state, tenant, response, items)
    if body.stream:
        return await event_stream(request, event_frames(session, ResponseEvents(response, keep)))
    [answer] = await unless_disconnected(request.receive, session.collect())
    output = output_items(answer)
    shown = response.ended(answer.finish_reason, output, session.usage)
    keep(shown, output)
    return Response(orjson.dumps(shown), media_type="application/json")


def _keeper(
    state: ServerState, tenant: str, response: ResponseObject, items: tuple[Item, ...]
) -> Callable[[dict[str, Any], tuple[Item, ...]], None]:
    """What stores the response, if it is to be stored."""

    def keep(shown: dict[str, Any], output: tuple[Item, ...]) -> None:
        if response.body.is_stored:
            state.responses.put(tenant, StoredResponse(response.id, orjson.dumps(shown), items, output))

    return keep


def _earlier_items(state: ServerState, tenant: str, body: ResponseBody) -> tuple[Item, ...]:
    """The conversation that this response goes on with."""
    if body.previous_response_id is None:
        return ()
    previous = state.responses.get(tenant, body.previous_response_id)
    if previous is None:
        message = f"previous_response_id: no response {body.previous_response_id!r} is stored"
        raise bad_request(message, "previous_response_id", "previous_response_not_found")
    return previous.items


def _new_items(state: ServerState, tenant: str, body: ResponseBody) -> list[Item]:
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    items: list[Item] = []
    for index, fields in enumerate(body.input):
        at = f"input[{index}]"
        item = read_item(fields, at)
        if isinstance(item, ItemReference):
            found = state.responses.find_item(tenant, item.id)
            if found is None:
                raise bad_request(f"{at}.id: no item {item.id!r} is stored", f"{at}.id", "item_not_found")
            item = found
        items.append(item)
    return items
