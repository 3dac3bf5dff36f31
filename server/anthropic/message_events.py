"""MessageEvents: the events of a streamed message, from message_start to message_stop or an error.

Invariants: blocks are numbered from 0 and one ends before the next begins; their deltas, joined, are the plain answer's
blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from server.anthropic.errors import anthropic_error
from server.anthropic.message_object import MessageObject, message_usage
from server.errors import ApiError
from server.generation.generation_group import Usage
from server.http.sse import named_frame
from server.openai.chat_session import ChatDelta, ChatEnding
from server.text.tool_calls.call import ToolCallDelta

Event = dict[str, Any]


class MessageEvents:
    """The events of one message."""

    def __init__(self, message: MessageObject) -> None:
        self._message = message
        self._index = -1
        self._open: str | None = None  # what the open block is
        self._call: int | None = None  # the place of the call that is open, among the calls
        self._last: ChatEnding | None = None

    def opening(self, usage: Usage) -> bytes:
        start = {"type": "message_start", "message": self._message.opening(usage)}
        return _frames(iter([start, {"type": "ping"}]))

    def more(self, delta: ChatDelta) -> bytes:
        self._last = delta.last or self._last
        return _frames(self._grown(delta))

    def closing(self, usage: Usage) -> bytes:
        return _frames(self._ended(usage))

    def failure(self, error: ApiError) -> bytes:
        return _frames(iter([anthropic_error(error)]))

    def _grown(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.reasoning:
            yield from self._begin("thinking", {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            yield from self._begin("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls:
            yield from self._grow_call(call)

    def _grow_call(self, call: ToolCallDelta) -> Iterator[Event]:
        if self._call != call.index:
            self._call = call.index
            yield from self._stop()
            yield from self._begin("tool_use", {"id": call.id, "name": call.name, "input": {}})
        if call.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _begin(self, kind: str, block: Event) -> Iterator[Event]:
        if self._open == kind:
            return
        yield from self._stop()
        self._index += 1
        self._open = kind
        yield {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **block}}

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _ended(self, usage: Usage) -> Iterator[Event]:
        yield from self._stop()
        ending = self._message.ending(self._last or ChatEnding("stop"))
        yield {"type": "message_delta", "delta": ending, "usage": message_usage(usage)}
        yield {"type": "message_stop"}


def _frames(events: Iterator[Event]) -> bytes:
    return b"".join(named_frame(event["type"], orjson.dumps(event)) for event in events)
