"""POST /v1/chat/completions, plain and streamed."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.generation.generation_group import Usage
from server.http.disconnect import unless_disconnected
from server.http.request_id import identify
from server.http.sse import event_stream
from server.openai.body import parse_body
from server.openai.chat_body import ChatBody
from server.openai.chat_session import ChatAnswer, ChatDelta, open_chat
from server.openai.choices import ending
from server.openai.chunks import ChunkEnvelope, stream_frames
from server.openai.content_logprobs import logprobs_body
from server.state import ServerState
from server.text.tool_calls.call import ToolCallDelta


async def create_chat_completion(state: ServerState, request: Request) -> Response:
    """``n`` choices: each an assistant's next message."""
    request_id = identify(request, "chatcmpl")
    ready, _ = state.require_ready()
    body = parse_body(ChatBody, await request.body(), ready.max_model_len)
    session = await open_chat(state, request, body, request_id)
    fields = {"id": session.request_id, "created": session.created, "model": body.model}
    include_ledger = body.include_ledger is True
    if body.stream:
        usage_so_far = (lambda: session.usage) if body.continuous_usage else None
        envelope = ChunkEnvelope(
            {**fields, "object": "chat.completion.chunk"}, include_usage=body.include_usage, usage_so_far=usage_so_far
        )
        chunks = ChatChunks(envelope, include_ledger=include_ledger)
        return await event_stream(request, stream_frames(session, chunks, include_usage=body.include_usage))
    answers = await unless_disconnected(request.receive, session.collect())
    choices = [
        {
            "index": index,
            "message": _message(answer),
            "logprobs": logprobs_body(answer.logprobs) if body.logprobs else None,
            **ending(answer.last, include_ledger=include_ledger),
        }
        for index, answer in enumerate(answers)
    ]
    completion = {**fields, "object": "chat.completion", "choices": choices, "usage": session.usage.body()}
    return Response(orjson.dumps(completion), media_type="application/json")


def _message(answer: ChatAnswer) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return message


def _call_body(call: ToolCallDelta) -> dict[str, object]:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


class ChatChunks:
    """Chunks of a streamed chat answer; every one is a chat.completion.chunk object."""

    def __init__(self, envelope: ChunkEnvelope, *, include_ledger: bool) -> None:
        self._envelope = envelope
        self._include_ledger = include_ledger
        self._make_frames: dict[int, Callable[[str], bytes]] = {}

    def opening(self, index: int) -> bytes | None:
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return self._envelope.wrap(b'[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}]' % (index, delta))

    def more(self, index: int, delta: ChatDelta) -> bytes | None:
        """A chunk for what is thought, one for what is said, and one for each piece of a call."""
        if delta.is_content:
            return self._content_frame(index, delta.content)
        frames = b""
        if delta.reasoning:
            frames += self._chunk(index, b'"reasoning_content":%b' % orjson.dumps(delta.reasoning))
        if delta.content or delta.logprobs:
            logprobs = orjson.dumps(logprobs_body(delta.logprobs)) if delta.logprobs else b"null"
            frames += self._chunk(index, b'"content":%b' % orjson.dumps(delta.content), logprobs)
        for call in delta.tool_calls:
            frames += self._chunk(index, b'"tool_calls":[%b]' % orjson.dumps(_call_body(call)))
        return frames or None

    def _content_frame(self, index: int, content: str) -> bytes:
        if (make_frame := self._make_frames.get(index)) is None:
            before = b'[{"index":%d,"delta":{"content":' % index
            make_frame = self._envelope.around(before, b'},"logprobs":null,"finish_reason":null}]')
            self._make_frames[index] = make_frame
        return make_frame(content)

    def _chunk(self, index: int, delta: bytes, logprobs: bytes = b"null") -> bytes:
        choices = b'[{"index":%d,"delta":{%b},"logprobs":%b,"finish_reason":null}]' % (index, delta, logprobs)
        return self._envelope.wrap(choices)

    def final(self, index: int, delta: ChatDelta) -> bytes | None:
        if delta.last is None:
            return None
        choice = {
            "index": index,
            "delta": {},
            "logprobs": None,
            **ending(delta.last, include_ledger=self._include_ledger),
        }
        return self._envelope.wrap(orjson.dumps([choice]))

    def usage(self, usage: Usage) -> bytes:
        return self._envelope.usage(usage)
