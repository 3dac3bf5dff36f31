"""ResponseEvents: the events of a streamed response, from response.created to its one end.

Knows the order of events; each item tells its own. Invariants: sequence numbers count from 0 without a gap; an item is
done before the next is added; an answer without anything is an empty message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from server.errors import ApiError
from server.generation.generation_group import Usage
from server.http.sse import named_frame
from server.openai.chat_session import ChatAnswer, ChatDelta, ChatEnding
from server.openai.content_logprobs import token_body
from server.openai.responses.items import AnswerItem, FunctionCallItem, Item, ReasoningItem, Status
from server.openai.responses.open_item import Event, OpenCall, OpenItem, OpenMessage, OpenReasoning
from server.openai.responses.response_object import LENGTH, ResponseObject
from server.text.tool_calls.call import ToolCallDelta


class ResponseEvents:
    """``on_end`` gets the response as it is shown, and its output, before its last event is sent."""

    def __init__(self, response: ResponseObject, on_end: Callable[[dict[str, Any], tuple[Item, ...]], None]) -> None:
        self._response = response
        self._on_end = on_end
        self._number = 0
        self._open: OpenItem | None = None
        self._call: int | None = None  # the place of the call that is open, among the calls
        self._output: list[Item] = []
        self._last: ChatEnding | None = None

    def opening(self, usage: Usage) -> bytes:
        response = self._response.in_progress()
        kinds = ("response.created", "response.in_progress")
        return self._frames({"type": kind, "response": response} for kind in kinds)

    def more(self, delta: ChatDelta) -> bytes:
        self._last = delta.last or self._last
        return self._frames(self._grown(delta))

    def closing(self, usage: Usage) -> bytes:
        finish_reason = "stop" if self._last is None else self._last.finish_reason
        frames = self._frames(self._ended("incomplete" if finish_reason == LENGTH else "completed"))
        response = self._response.ended(finish_reason, self._output, usage)
        self._on_end(response, tuple(self._output))
        return frames + self._frames([{"type": f"response.{response['status']}", "response": response}])

    def failure(self, error: ApiError) -> bytes:
        output = self._output if self._open is None else [*self._output, self._open.item("incomplete")]
        return self._frames([{"type": "response.failed", "response": self._response.failed(error, output)}])

    def _grown(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.reasoning:
            thoughts = self._open
            if not isinstance(thoughts, OpenReasoning):
                thoughts = OpenReasoning(self._next_place())
                yield from self._begin(thoughts)
            yield thoughts.add(delta.reasoning)
        if delta.content or delta.logprobs:
            message = self._open
            if not isinstance(message, OpenMessage):
                message = OpenMessage(self._next_place())
                yield from self._begin(message)
            yield message.add(delta.content, delta.logprobs)
        for call in delta.tool_calls:
            yield from self._grow_call(call)

    def _grow_call(self, more: ToolCallDelta) -> Iterator[Event]:
        call = self._open
        if not isinstance(call, OpenCall) or self._call != more.index:
            call = OpenCall(self._next_place(), more.id or "", more.name or "")
            self._call = more.index
            yield from self._begin(call)
        if more.arguments:
            yield call.add(more.arguments)

    def _next_place(self) -> int:
        return len(self._output) + (self._open is not None)

    def _begin(self, item: OpenItem) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        yield from item.opened()

    def _close(self, status: Status) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.closed(status)
            self._output.append(self._open.item(status))
            self._open = None

    def _ended(self, status: Status) -> Iterator[Event]:
        if self._open is None and not self._output:
            yield from self._begin(OpenMessage(0))
        yield from self._close(status)

    def _frames(self, events: Iterable[Event]) -> bytes:
        frames = b""
        for event in events:
            frames += named_frame(event["type"], orjson.dumps({**event, "sequence_number": self._number}))
            self._number += 1
        return frames


def output_items(answer: ChatAnswer) -> tuple[Item, ...]:
    """The items of a whole answer: thoughts, text, calls; the last of them is incomplete where the answer was cut."""
    items: list[Item] = []
    if answer.reasoning:
        items.append(ReasoningItem(type="reasoning", content=answer.reasoning))
    if answer.content or not (items or answer.tool_calls):
        logprobs = [token_body(token) for token in answer.logprobs]
        items.append(AnswerItem(content=answer.content or "", logprobs=logprobs))
    items += [
        FunctionCallItem(type="function_call", call_id=call.id, name=call.name, arguments=call.arguments)
        for call in answer.tool_calls
    ]
    if answer.finish_reason == LENGTH:
        items[-1] = items[-1].model_copy(update={"status": "incomplete"})
    return tuple(items)
