"""The messages of a conversation, one class for each kind of role, as they come in and as a chat template reads them.

Knows the wire format. Invariants: a content is text by the time it leaves here; what is sent back as this server wrote
it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field, PlainValidator, ValidationInfo, field_validator, model_validator

from server.http.nesting import is_deeper
from server.openai.body import Body, NeutralValues
from server.openai.content_parts import read_text

MAX_TOOL_CALLS = 128  # in one message
MAX_ID_CHARACTERS = 256


OptionalContent = str | list[dict[str, str]] | None


def _read_optional_content(value: object) -> str | None:
    return None if value is None else read_text(value)


class TextMessage(Body):
    """What the operator or the user says."""

    role: Literal["system", "developer", "user"]
    content: Annotated[str, PlainValidator(read_text, str | list[dict[str, str]])]
    name: str | None = None

    @property
    def num_characters(self) -> int:
        return len(self.content)

    def template_fields(self) -> dict[str, Any]:
        """The message as a chat template reads it."""
        fields = {"role": self.role, "content": self.content}
        return fields if self.name is None else fields | {"name": self.name}


OptionalText = Annotated[str | None, PlainValidator(_read_optional_content, OptionalContent)]


class CalledFunction(Body):
    """What an earlier call called. ``arguments`` is any text, since a model may have written what is no JSON."""

    name: str = Field(min_length=1)
    arguments: str


class EarlierCall(Body):
    """A tool call in an earlier message of the assistant."""

    id: str = Field(min_length=1, max_length=MAX_ID_CHARACTERS)
    type: Literal["function"] = "function"
    function: CalledFunction

    def template_fields(self) -> dict[str, Any]:
        """The call as a chat template reads it: its arguments are an object where they can be."""
        function = {"name": self.function.name, "arguments": _object(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class AssistantMessage(Body):
    """What the assistant said, thought and called. ``content`` may be None beside calls."""

    NEUTRAL: ClassVar[NeutralValues] = {
        "refusal": (),
        "function_call": (),
        "audio": (),
        "annotations": ([],),
    }

    role: Literal["assistant"]
    tool_calls: list[EarlierCall] | None = Field(default=None, max_length=MAX_TOOL_CALLS)
    content: Annotated[str | None, PlainValidator(_read_optional_content, OptionalContent)] = Field(
        None, validate_default=True
    )
    name: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_reasoning(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or "reasoning" not in fields:
            return fields
        return {"reasoning_content" if name == "reasoning" else name: value for name, value in fields.items()}

    @field_validator("content")
    @classmethod
    def _says_or_calls(cls, content: str | None, info: ValidationInfo) -> str | None:
        if content is None and not info.data.get("tool_calls", True):
            raise ValueError("must be text, unless the message has tool_calls")
        return content

    @property
    def num_characters(self) -> int:
        calls = sum(len(call.function.arguments) for call in self.tool_calls or ())
        return len(self.content or "") + len(self.reasoning_content or "") + calls

    def template_fields(self) -> dict[str, Any]:
        """The message as a chat template reads it."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            fields["tool_calls"] = [call.template_fields() for call in self.tool_calls]
        if self.reasoning_content:
            fields["reasoning_content"] = self.reasoning_content
        return fields if self.name is None else fields | {"name": self.name}


class ToolMessage(Body):
    """What a tool answered to the call of this id."""

    role: Literal["tool"]
    tool_call_id: str = Field(min_length=1, max_length=MAX_ID_CHARACTERS)
    content: Annotated[str, PlainValidator(read_text, str | list[dict[str, str]])]
    name: str | None = None

    @property
    def num_characters(self) -> int:
        return len(self.content)

    def template_fields(self) -> dict[str, Any]:
        """The message as a chat template reads it."""
        fields = {"role": self.role, "content": self.content, "tool_call_id": self.tool_call_id}
        return fields if self.name is None else fields | {"name": self.name}


ChatMessage = TextMessage | AssistantMessage | ToolMessage
_KINDS: Mapping[str, type[ChatMessage]] = {"assistant": AssistantMessage, "tool": ToolMessage}


def read_message(value: object) -> ChatMessage:
    """A message of the kind that its role says."""
    role = value.get("role") if isinstance(value, dict) else None
    kind = _KINDS.get(role, TextMessage) if isinstance(role, str) else TextMessage
    return kind.model_validate(value)


def _object(text: str) -> object:
    """The JSON object that a text is, or the text, also of one too deep for templates; no text is no arguments."""
    if not text.strip():
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, dict) and not is_deeper(value) else text
