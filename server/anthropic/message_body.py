"""CountBody and MessageBody: the bodies of POST /v1/messages/count_tokens and POST /v1/messages, and their chat.

Know the wire format and no model. Fields that a chat has too are validated there.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator

from server.anthropic.blocks import CacheControl, read_blocks, read_text
from server.anthropic.conversation import chat_messages
from server.openai.body import Body, NeutralValues
from server.openai.field_names import FieldNames
from server.openai.generation_body import MAX_INT32

ASSISTANT = "assistant"
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
CHAT_NAMES = FieldNames(
    [
        (r"messages\b.*", "messages"),
        (r"max_completion_tokens\b", "max_tokens"),
        (r"continue_final_message\b", "messages"),
        (r"stop\b", "stop_sequences"),
        (r"parallel_tool_calls\b", "tool_choice.disable_parallel_tool_use"),
        (r"response_format\.json_schema\b", "output_config.format"),
        (r"response_format\b", "output_config.format"),
        (r"reasoning_effort\b", "output_config.effort"),
        (r"user\b", "metadata.user_id"),
        (r"(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
        (r"(tools\[\d+\]|tool_choice)\.function\b", r"\1"),
    ]
)


def _read_content(value: object) -> str | list[Any]:
    if isinstance(value, str | list) and value:
        return value
    raise ValueError("must be a string or a list of blocks, and not empty")


class Message(Body):
    """One message; what its blocks may be depends on the role."""

    role: Literal["user", "assistant"]
    content: Annotated[str | list[Any], PlainValidator(_read_content, str | list[dict[str, Any]])]


class Tool(Body):
    """A tool of the client's."""

    NEUTRAL: ClassVar[NeutralValues] = {
        "defer_loading": (False,),
        "eager_input_streaming": (True, False),
        "input_examples": ([],),
        "allowed_callers": (["direct"],),
    }

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None

    def chat_tool(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class ToolChoice(Body):
    """Whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def chat_tool_choice(self) -> object:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return TOOL_CHOICES[self.type]


class OutputFormat(Body):
    """The schema that the text must follow."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """What the text must be, and how much the model thinks."""

    format: OutputFormat | None = None
    effort: str | None = None

    def chat_format(self) -> dict[str, Any] | None:
        if self.format is None:
            return None
        schema = {"name": "output", "schema": self.format.schema_, "strict": True}
        return {"type": "json_schema", "json_schema": schema}


class Thinking(Body):
    """Whether the model thinks before it answers; how long it may cannot be chosen."""

    NEUTRAL: ClassVar[NeutralValues] = {"display": ()}

    type: Literal["adaptive", "disabled"]


class Metadata(Body):
    """Whom the client asks for; accepted, not used."""

    user_id: str | None = None


class CountBody(Body):
    """What the model would read."""

    NEUTRAL: ClassVar[NeutralValues] = {
        "mcp_servers": ([],),
        "context_management": (),
    }

    model: str = Field(min_length=1)
    messages: list[Message] = Field(min_length=1)
    system: Annotated[str, PlainValidator(read_text, str | list[dict[str, Any]])] = ""
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None

    def chat_fields(self) -> dict[str, Any]:
        """The chat that answers, as a body of POST /v1/chat/completions."""
        turns = [
            (message.role, read_blocks(message.role, message.content, f"messages[{index}]"))
            for index, message in enumerate(self.messages)
        ]
        wanted: dict[str, Any] = {"model": self.model, "messages": chat_messages(self.system, turns)}
        if self.messages[-1].role == ASSISTANT:
            wanted |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.tools:
            wanted["tools"] = [tool.chat_tool() for tool in self.tools]
        if self.tool_choice is not None:
            wanted["tool_choice"] = self.tool_choice.chat_tool_choice()
            if self.tool_choice.disable_parallel_tool_use:
                wanted["parallel_tool_calls"] = False
        if self.thinking is not None and self.thinking.type == "disabled":
            wanted["reasoning_effort"] = "none"
        if self.output_config is not None:
            wanted["response_format"] = self.output_config.chat_format()
            wanted.setdefault("reasoning_effort", self.output_config.effort)
        return {name: value for name, value in wanted.items() if value is not None}


class MessageBody(CountBody):
    """POST /v1/messages."""

    NEUTRAL: ClassVar[NeutralValues] = CountBody.NEUTRAL | {
        "service_tier": ("auto", "standard_only"),
        "container": (),
        "inference_geo": (),
    }

    max_tokens: int = Field(ge=1, le=MAX_INT32)
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = Field(default=None, ge=0)
    metadata: Metadata | None = None

    def chat_fields(self) -> dict[str, Any]:
        wanted = {
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "user": None if self.metadata is None else self.metadata.user_id,
        }
        return super().chat_fields() | {name: value for name, value in wanted.items() if value is not None}
