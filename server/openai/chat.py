"""POST /v1/chat/completions, plain and streamed."""

from __future__ import annotations

import time

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import EngineReady
from server.disconnect import unless_disconnected
from server.errors import bad_request
from server.generation import TextDelta
from server.generation_group import Usage
from server.openai.body import parse_body
from server.openai.chat_body import ChatBody
from server.openai.choices import ending
from server.openai.chunks import ChunkEnvelope, stream_frames
from server.openai.submission import (
    Submission,
    check_num_samples,
    check_priority,
    check_text_fits,
    check_vocabulary,
    choose_max_tokens,
    encode,
)
from server.request_id import identify
from server.sse import event_stream
from server.state import ServerState
from server.text.chat_template import ChatTemplate
from server.text.tokenizer import Tokenizer


async def create_chat_completion(state: ServerState, request: Request) -> Response:
    """``n`` choices: each an assistant's next message."""
    arrived = time.monotonic()
    request_id = identify(request, "chatcmpl")
    ready, tokenizer = state.require_ready()
    body = parse_body(ChatBody, await request.body(), ready.max_model_len)
    state.require_model(body.model)
    check_priority(body, state)
    template = _require_template(state)
    check_vocabulary(body.stop_token_ids or [], ready, "stop_token_ids")
    check_num_samples(body, ready, 1)
    num_characters = sum(len(message.content) for message in body.messages)
    token_ids = await encode(lambda: _prompt_ids(body, template, tokenizer, ready), num_characters, "messages")
    max_tokens = choose_max_tokens(state, len(token_ids), body.token_limit, None, rotates=body.rotates)
    authorization = request.headers.get("authorization")
    group = Submission(
        state=state,
        tokenizer=tokenizer,
        body=body,
        request_id=request_id,
        stops=body.stop + template.stops,
        salt=state.api_keys.salt(authorization, body.cache_salt),
        tenant=state.api_keys.tenant(authorization),
        arrived=arrived,
    ).prepare([(token_ids, max_tokens)])
    fields = {"id": request_id.own, "created": int(time.time()), "model": state.served_model_name}
    if body.stream:
        envelope = ChunkEnvelope({**fields, "object": "chat.completion.chunk"}, include_usage=body.include_usage)
        chunks = ChatChunks(envelope, include_ledger=body.include_ledger is True)
        frames = stream_frames(group, chunks, include_usage=body.include_usage)
        return await event_stream(request, frames)
    answers = await unless_disconnected(request.receive, group.collect())
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None,
            **ending(answer, include_ledger=body.include_ledger is True),
        }
        for index, answer in enumerate(answers)
    ]
    completion = {**fields, "object": "chat.completion", "choices": choices, "usage": group.usage.body()}
    return Response(orjson.dumps(completion), media_type="application/json")


def _require_template(state: ServerState) -> ChatTemplate:
    if state.chat_template is None:
        message = (
            f"the model {state.served_model_name!r} has no chat template: start the server with --chat-template FILE "
            "(or --chat-template plain-transcript for a base model), or use /v1/completions"
        )
        raise bad_request(message, code="chat_template_missing")
    return state.chat_template


def _prompt_ids(body: ChatBody, template: ChatTemplate, tokenizer: Tokenizer, ready: EngineReady) -> list[int]:
    messages = [message.template_fields() for message in body.messages]
    if "developer" not in template.source:
        # The newer name of the system role, which most templates have never heard of.
        messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
    text = template.render(messages, special_tokens=tokenizer.special_tokens)
    check_text_fits(text, tokenizer, ready, "messages")  # not before: a template may cut what it is given
    return tokenizer.encode_chat(text)


class ChatChunks:
    """Chunks of a streamed chat answer; every one is a chat.completion.chunk object."""

    def __init__(self, envelope: ChunkEnvelope, *, include_ledger: bool) -> None:
        self._envelope = envelope
        self._include_ledger = include_ledger

    def opening(self, index: int) -> bytes | None:
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return self._envelope.wrap(b'[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}]' % (index, delta))

    def text(self, index: int, text: str) -> bytes:
        choices = b'[{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}]'
        return self._envelope.wrap(choices % (index, orjson.dumps(text)))

    def final(self, index: int, last: TextDelta) -> bytes:
        choice = {
            "index": index,
            "delta": {},
            "logprobs": None,
            **ending(last, include_ledger=self._include_ledger),
        }
        return self._envelope.wrap(orjson.dumps([choice]))

    def usage(self, usage: Usage) -> bytes:
        return self._envelope.usage(usage)
