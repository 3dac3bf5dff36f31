"""ResponseBody: the body of POST /v1/responses, and the chat it asks for.

Knows the wire format and no model. Fields that a chat has under the same name are validated there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, PlainValidator, ValidationInfo, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from server.openai.body import Body, NeutralValues
from server.openai.chat_body import ChatBody
from server.openai.field_names import FieldNames
from server.openai.generation_body import MAX_INT32, MAX_LOGPROBS
from server.openai.responses.conversation import chat_messages
from server.openai.responses.items import MAX_ID_CHARACTERS, Item

MAX_METADATA = 16
MAX_METADATA_KEY, MAX_METADATA_VALUE = 64, 512

TOOL_CHOICES = ("none", "auto", "required")
# Fields of a chat that mean the same here.
SHARED = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "stream", "cache_salt", "priority", "timeout", "user",
    "parallel_tool_calls", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
CHAT_NAMES = FieldNames(
    [
        (r"messages\b", "input"),
        (r"max_completion_tokens\b", "max_output_tokens"),
        (r"reasoning_effort\b", "reasoning.effort"),
        (r"response_format\.json_schema\b", "text.format"),
        (r"response_format\b", "text.format"),
        (r"(tools\[\d+\]|tool_choice)\.function\b", r"\1"),
    ]
)


def _read_input(value: object) -> str | list[dict[str, Any]]:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise ValueError("must be a string or a list of items, and not empty")
    return value


class FunctionTool(Body):
    """A function that the model may call."""

    NEUTRAL: ClassVar[NeutralValues] = {
        "defer_loading": (False,),
        "allowed_callers": (["direct"],),
        "output_schema": (),
    }

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def chat_tool(self) -> dict[str, Any]:
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class FunctionChoice(Body):
    """The function that must be called."""

    type: Literal["function"]
    name: str


def _read_tool_choice(value: object) -> str | FunctionChoice | None:
    if value is None or value in TOOL_CHOICES:
        return value
    if isinstance(value, dict) and value.keys() == {"type", "name"} and isinstance(value["name"], str):
        return FunctionChoice(**value)
    raise ValueError(f'must be one of {", ".join(TOOL_CHOICES)}, or {{"type": "function", "name": ...}}')


class TextFormat(Body):
    """What the text must be. All but ``type`` belongs to a JSON schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None

    def chat_format(self) -> dict[str, Any]:
        fields = self.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        if self.type == "json_schema" or fields:
            return {"type": self.type, "json_schema": fields}
        return {"type": self.type}


class TextConfig(Body):
    """How the text is written."""

    NEUTRAL: ClassVar[NeutralValues] = {"verbosity": ("medium",)}

    format: TextFormat | None = None


class ReasoningConfig(Body):
    """How much the model thinks. ``summary: "auto"`` is what there is, which is none: the thoughts are shown whole."""

    NEUTRAL: ClassVar[NeutralValues] = {
        "summary": ("auto",),
        "generate_summary": ("auto",),
        "mode": ("standard",),
        "context": ("auto",),
    }

    effort: str | None = None


class ResponseStreamOptions(Body):
    """Nothing to choose: events are never padded."""

    NEUTRAL: ClassVar[NeutralValues] = {"include_obfuscation": (False,)}


ToolChoice = Annotated[str | FunctionChoice | None, PlainValidator(_read_tool_choice, str | dict[str, Any] | None)]


class ResponseBody(Body):
    """POST /v1/responses."""

    NEUTRAL: ClassVar[NeutralValues] = {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "max_tool_calls": (),
        "moderation": (),
        "prompt": (),
        "prompt_cache_retention": ("in_memory",),
        "service_tier": ("auto", "default"),
        "truncation": ("disabled",),
    }

    model: Any
    input: Annotated[str | list[dict[str, Any]], PlainValidator(_read_input, str | list[dict[str, Any]])]
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_CHARACTERS)
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_INT32)
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    store: bool | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=MAX_METADATA)
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    cache_salt: Any = None
    priority: Any = None
    timeout: Any = None
    user: Any = None
    parallel_tool_calls: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @field_validator("metadata")
    @classmethod
    def _metadata_is_short(cls, metadata: dict[str, str] | None) -> dict[str, str] | None:
        for key, value in (metadata or {}).items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                raise ValueError(
                    f"a key has at most {MAX_METADATA_KEY} characters and a value at most {MAX_METADATA_VALUE}"
                )
        return metadata

    @field_validator("top_logprobs")
    @classmethod
    def _top_logprobs_need_logprobs(cls, num_top: int | None, info: ValidationInfo) -> int | None:
        if num_top and not info.data.get("include", True):
            raise ValueError('allowed only with include: ["message.output_text.logprobs"]')
        return num_top

    @field_validator("stream_options")
    @classmethod
    def _stream_options_need_stream(
        cls, options: ResponseStreamOptions | None, info: ValidationInfo
    ) -> ResponseStreamOptions | None:
        if options is not None and not info.data.get("stream", True):
            raise ValueError("allowed only with stream: true")
        return options

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What a chat validates is as it is there."""
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        of_chat = ChatBody.model_json_schema()["properties"]
        handler.resolve_ref_schema(schema)["properties"].update((name, of_chat[name]) for name in SHARED)
        return schema

    def chat_fields(self, items: Iterable[Item]) -> dict[str, Any]:
        """The chat that answers ``items``, as a body of POST /v1/chat/completions."""
        wanted: Mapping[str, Any] = {
            **{name: getattr(self, name) for name in SHARED},
            "messages": chat_messages(self.instructions, items),
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": True if self.include else None,
            "top_logprobs": self.top_logprobs,
            "tools": None if self.tools is None else [tool.chat_tool() for tool in self.tools],
            "tool_choice": self._chat_tool_choice(),
            "response_format": self.text.format.chat_format() if self.text and self.text.format else None,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def _chat_tool_choice(self) -> object:
        if isinstance(self.tool_choice, FunctionChoice):
            return {"type": "function", "function": {"name": self.tool_choice.name}}
        return self.tool_choice
