"""Items: what a conversation consists of in the responses API, as they come in and as they are shown.

One class for each kind; the same ones are input, output and what is stored. Invariant: an item that was shown can be
sent back as it is, and is the same item.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator

from server.errors import bad_request
from server.openai.body import Body, NeutralValues, validate_body
from server.openai.content_parts import read_text

MAX_ID_CHARACTERS = 128
Status = Literal["in_progress", "completed", "incomplete"]


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _read_parts(value: object, *kinds: str) -> str:
    return read_text(value, kinds=kinds, neutral=frozenset({"annotations"}), ignored=frozenset({"logprobs"}))


def _read_message(value: object) -> str:
    return _read_parts(value, "input_text", "output_text", "text")


def _read_reasoning(value: object) -> str:
    return "" if value is None else _read_parts(value, "reasoning_text")


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]


class MessageItem(Body):
    """A message; ``content`` is its text."""

    NEUTRAL: ClassVar[NeutralValues] = {"phase": ("final_answer",)}

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_read_message, str | list[dict[str, Any]])]
    id: Id = Field(default_factory=lambda: new_id("msg"))
    status: Status | None = None

    @property
    def part(self) -> dict[str, object]:
        """Its content as it is shown."""
        if self.role == "assistant":
            return text_part(self.content)
        return {"type": "input_text", "text": self.content}

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id,
            "type": "message",
            "role": self.role,
            "status": self.status or "completed",
            "content": [self.part],
        }


class AnswerItem(MessageItem):
    """A message of the assistant that was made here, perhaps with log probabilities, which are never read back."""

    role: Literal["assistant"] = "assistant"
    logprobs: list[dict[str, object]] = Field(default=[])

    @property
    def part(self) -> dict[str, object]:
        return text_part(self.content) | {"logprobs": self.logprobs}


class FunctionCallItem(Body):
    """A call of a function by the model; ``call_id`` is what its output refers to."""

    NEUTRAL: ClassVar[NeutralValues] = {"namespace": (), "caller": (), "async": (False,)}

    type: Literal["function_call"]
    call_id: Id
    name: str = Field(min_length=1)
    arguments: str
    id: Id = Field(default_factory=lambda: new_id("fc"))
    status: Status | None = None

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status or "completed",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


class FunctionCallOutputItem(Body):
    """What the client's function returned; ``output`` is its text."""

    NEUTRAL: ClassVar[NeutralValues] = {"caller": (), "name": (), "namespace": ()}

    type: Literal["function_call_output"]
    call_id: Id
    output: Annotated[str, PlainValidator(_read_message, str | list[dict[str, Any]])]
    id: Id = Field(default_factory=lambda: new_id("fco"))
    status: Status | None = None

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id,
            "type": "function_call_output",
            "status": self.status or "completed",
            "call_id": self.call_id,
            "output": self.output,
        }


class ReasoningItem(Body):
    """What the model thought before it answered; ``content`` is its text. Nothing summarises it."""

    NEUTRAL: ClassVar[NeutralValues] = {"encrypted_content": ()}

    type: Literal["reasoning"]
    content: Annotated[str, PlainValidator(_read_reasoning, str | list[dict[str, Any]] | None)] = ""
    summary: list[Any] = Field(default=[], max_length=0)
    id: Id = Field(default_factory=lambda: new_id("rs"))
    status: Status | None = None

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status or "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": self.content}],
        }


class ItemReference(Body):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"] = "item_reference"
    id: Id


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
KINDS: Mapping[str, type[Item | ItemReference]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}


def text_part(text: str) -> dict[str, object]:
    """The content of an assistant's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def read_item(fields: dict[str, Any], at: str) -> Item | ItemReference:
    """One input item, which is at ``at`` in the request; ApiError 400 where it is wrong."""
    kind = fields.get("type")
    if kind is None:
        kind = "item_reference" if fields.keys() <= {"type", "id"} else "message"
        fields = {name: value for name, value in fields.items() if name != "type"}
    if not isinstance(kind, str) or kind not in KINDS:
        message = f"{at}.type: unsupported item type {str(kind)[:40]!r}; this server knows {', '.join(KINDS)}"
        raise bad_request(message, f"{at}.type")
    fields = {name: value for name, value in fields.items() if not (name in ("id", "status") and value is None)}
    return validate_body(KINDS[kind], fields, at)
