"""POST /v1/messages, plain and streamed, and POST /v1/messages/count_tokens."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.answer_events import event_frames
from server.anthropic.message_body import CHAT_NAMES, CountBody, MessageBody
from server.anthropic.message_events import MessageEvents
from server.anthropic.message_object import MessageObject
from server.http.disconnect import unless_disconnected
from server.http.request_id import identify
from server.http.sse import event_stream
from server.openai.body import parse_body, validate_body
from server.openai.chat_body import ChatBody
from server.openai.chat_prompt import prompt_text, require_template
from server.openai.chat_session import open_chat
from server.openai.submission import encode
from server.state import ServerState


async def create_message(state: ServerState, request: Request) -> Response:
    """The assistant's next message."""
    request_id = identify(request, "msg")
    ready, _ = state.require_ready()
    body = parse_body(MessageBody, await request.body(), ready.max_model_len)
    fields = body.chat_fields()
    with CHAT_NAMES.told():
        chat = validate_body(ChatBody, fields)
        session = await open_chat(state, request, chat, request_id)
    message = MessageObject(session.request_id, chat.model, body.stop_sequences or ())
    if body.stream:
        return await event_stream(request, event_frames(session, MessageEvents(message)))
    [answer] = await unless_disconnected(request.receive, session.collect())
    return Response(orjson.dumps(message.whole(answer, session.usage)), media_type="application/json")


async def count_message_tokens(state: ServerState, request: Request) -> Response:
    """How many tokens the model would read."""
    ready, tokenizer = state.require_ready()
    body = parse_body(CountBody, await request.body(), ready.max_model_len)
    fields = body.chat_fields()
    with CHAT_NAMES.told():
        chat = validate_body(ChatBody, fields)
        state.require_model(chat.model)
        template = require_template(state, chat)
        token_ids = await encode(
            lambda: tokenizer.encode_chat(prompt_text(chat, template, tokenizer)), chat.num_characters, "messages"
        )
    return Response(orjson.dumps({"input_tokens": len(token_ids)}), media_type="application/json")
