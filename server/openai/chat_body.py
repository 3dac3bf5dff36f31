"""ChatBody: the body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, ValidationInfo, field_validator

from server.openai.body import NeutralValues
from server.openai.chat_message import ChatMessage, read_message
from server.openai.chat_tools import MAX_TOOLS, NamedTool, ToolChoice, ToolDefinition, read_tool_choice
from server.openai.generation_body import (
    GRAMMAR_FIELDS,
    MAX_INT32,
    MAX_LOGPROBS,
    NEUTRAL_SAMPLING,
    GenerationBody,
)

TOOL_CHARACTERS = 500  # of a tool's definition, about


class ChatBody(GenerationBody):
    """POST /v1/chat/completions: ``n`` choices."""

    NEUTRAL: ClassVar[NeutralValues] = NEUTRAL_SAMPLING | {
        "best_of": (),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "documents": ([],),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "verbosity": ("medium",),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "metadata": ({},),
        "web_search_options": (),
    }

    messages: list[Annotated[ChatMessage, PlainValidator(read_message, ChatMessage)]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT32)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: list[ToolDefinition] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Annotated[ToolChoice | None, PlainValidator(read_tool_choice, str | dict[str, Any] | None)] = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(default=None, min_length=1, max_length=40)
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _top_logprobs_need_logprobs(cls, num_top: int | None, info: ValidationInfo) -> int | None:
        if num_top and not info.data.get("logprobs", True):
            raise ValueError("allowed only with logprobs: true")
        return num_top

    @field_validator("tools")
    @classmethod
    def _tools_have_names_of_their_own(cls, tools: list[ToolDefinition] | None) -> list[ToolDefinition] | None:
        names = [tool.function.name for tool in tools or ()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tools are named {name!r}")
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _choice_is_among_tools(cls, choice: ToolChoice | None, info: ValidationInfo) -> ToolChoice | None:
        tools = info.data.get("tools") or ()
        if choice == "required" and not tools:
            raise ValueError("needs tools")
        if isinstance(choice, NamedTool) and choice.name not in {tool.function.name for tool in tools}:
            raise ValueError(f"no tool is named {choice.name[:64]!r}")
        field = next((name for name in GRAMMAR_FIELDS if info.data.get(name) is not None), None)
        if field is not None and (choice == "required" or isinstance(choice, NamedTool)):
            raise ValueError(f"not together with {field}: the answer is a call, or what that says")
        return choice

    @field_validator("add_generation_prompt")
    @classmethod
    def _prompts_or_continues(cls, prompts: bool | None, info: ValidationInfo) -> bool | None:
        if prompts and info.data.get("continue_final_message"):
            raise ValueError("not allowed with continue_final_message: true")
        return prompts

    @field_validator("continue_final_message")
    @classmethod
    def _continues_the_assistant(cls, continues: bool | None, info: ValidationInfo) -> bool | None:
        messages = info.data.get("messages")
        if continues and messages and (messages[-1].role != "assistant" or not messages[-1].content):
            raise ValueError("the final message must be the assistant's, with text")
        return continues

    @property
    def num_characters(self) -> int:
        """About how much text the prompt is made of; more where a client's template makes it, which takes any time."""
        if self.chat_template is not None:
            return MAX_INT32
        return sum(message.num_characters for message in self.messages) + len(self.offered_tools) * TOOL_CHARACTERS

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered_tools(self) -> list[ToolDefinition]:
        """Tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def required_tools(self) -> list[ToolDefinition]:
        """Tools of which one must be called: the one that is named, or any."""
        name = self.tool_choice.name if isinstance(self.tool_choice, NamedTool) else None
        return [tool for tool in self.tools or () if name is None or tool.function.name == name]

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the final message."""
        return self.continue_final_message is True

    @property
    def begins_answer(self) -> bool:
        """Whether the template opens the assistant's turn."""
        return self.add_generation_prompt is not False and not self.continues
