"""OpenItem: one item of an answer while it is streamed, as the events that tell of it.

One class for each kind of item. Knows nothing of the response around it but the item's place. Invariant: the deltas of
an item, joined, are what its last event shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from server.generation.token_logprob import TokenLogprob
from server.openai.content_logprobs import token_body
from server.openai.responses.items import (
    AnswerItem,
    FunctionCallItem,
    Item,
    ReasoningItem,
    Status,
    new_id,
    text_part,
)

Event = dict[str, Any]


class OpenItem(Protocol):
    """An item that grows."""

    def opened(self) -> Iterator[Event]:
        """What comes before its first text."""

    def closed(self, status: Status) -> Iterator[Event]:
        """What comes after its last text."""

    def item(self, status: Status) -> Item:
        """The item as far as it has come."""


class OpenMessage:
    """The text of the answer."""

    def __init__(self, output_index: int) -> None:
        self._place = output_index
        self._texts: list[str] = []
        self._logprobs: list[dict[str, object]] = []
        self._id = new_id("msg")
        self._at = {"item_id": self._id, "output_index": output_index, "content_index": 0}

    def opened(self) -> Iterator[Event]:
        item = self.item("in_progress").shown() | {"content": []}
        yield {"type": "response.output_item.added", "output_index": self._place, "item": item}
        yield {"type": "response.content_part.added", **self._at, "part": text_part("")}

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> Event:
        """More of it."""
        told = [token_body(token) for token in logprobs]
        self._texts.append(text)
        self._logprobs += told
        return {"type": "response.output_text.delta", **self._at, "delta": text, "logprobs": told}

    def closed(self, status: Status) -> Iterator[Event]:
        item = self.item(status)
        yield {"type": "response.output_text.done", **self._at, "text": item.content, "logprobs": item.logprobs}
        yield {"type": "response.content_part.done", **self._at, "part": item.part}
        yield {"type": "response.output_item.done", "output_index": self._place, "item": item.shown()}

    def item(self, status: Status) -> AnswerItem:
        return AnswerItem(id=self._id, content="".join(self._texts), status=status, logprobs=self._logprobs)


class OpenReasoning:
    """What the model thinks before it answers."""

    def __init__(self, output_index: int) -> None:
        self._place = output_index
        self._texts: list[str] = []
        self._id = new_id("rs")
        self._at = {"item_id": self._id, "output_index": output_index, "content_index": 0}

    def opened(self) -> Iterator[Event]:
        item = self.item("in_progress").shown() | {"content": []}
        yield {"type": "response.output_item.added", "output_index": self._place, "item": item}
        yield {"type": "response.content_part.added", **self._at, "part": {"type": "reasoning_text", "text": ""}}

    def add(self, text: str) -> Event:
        """More of it."""
        self._texts.append(text)
        return {"type": "response.reasoning_text.delta", **self._at, "delta": text}

    def closed(self, status: Status) -> Iterator[Event]:
        item = self.item(status)
        part = {"type": "reasoning_text", "text": item.content}
        yield {"type": "response.reasoning_text.done", **self._at, "text": item.content}
        yield {"type": "response.content_part.done", **self._at, "part": part}
        yield {"type": "response.output_item.done", "output_index": self._place, "item": item.shown()}

    def item(self, status: Status) -> ReasoningItem:
        return ReasoningItem(type="reasoning", id=self._id, content="".join(self._texts), status=status)


class OpenCall:
    """A call of a function."""

    def __init__(self, output_index: int, call_id: str, name: str) -> None:
        self._place = output_index
        self._call_id = call_id
        self._name = name
        self._texts: list[str] = []
        self._id = new_id("fc")
        self._at = {"item_id": self._id, "output_index": output_index}

    def opened(self) -> Iterator[Event]:
        item = self.item("in_progress").shown()
        yield {"type": "response.output_item.added", "output_index": self._place, "item": item}

    def add(self, text: str) -> Event:
        """More of it."""
        self._texts.append(text)
        return {"type": "response.function_call_arguments.delta", **self._at, "delta": text}

    def closed(self, status: Status) -> Iterator[Event]:
        item = self.item(status)
        done = {"name": item.name, "arguments": item.arguments}
        yield {"type": "response.function_call_arguments.done", **self._at, **done}
        yield {"type": "response.output_item.done", "output_index": self._place, "item": item.shown()}

    def item(self, status: Status) -> FunctionCallItem:
        return FunctionCallItem(
            type="function_call",
            id=self._id,
            call_id=self._call_id,
            name=self._name,
            arguments="".join(self._texts),
            status=status,
        )
