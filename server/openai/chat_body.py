"""ChatBody: the body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PlainValidator

from server.openai.body import Body, NeutralValues
from server.openai.generation_body import MAX_INT32, NEUTRAL_SAMPLING, GenerationBody


def _read_content(value: object) -> str:
    """Text of a message: a string, or the joined text of its parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise ValueError('a content part is an object like {"type": "text", "text": "..."}')
        if kind != "text":
            raise ValueError(f"unsupported content part type {kind[:40]!r}: this server reads text only")
        if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError('a text part has the fields "type" and "text" and no other, and its text is a string')
        texts.append(part["text"])
    return "".join(texts)


class ChatMessage(Body):
    """One message; ``content`` is its text."""

    NEUTRAL: ClassVar[NeutralValues] = {
        "refusal": (),
        "tool_calls": ([],),
        "function_call": (),
        "audio": (),
        "annotations": ([],),
        "reasoning_content": ("",),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_read_content)]
    name: str | None = None

    def template_fields(self) -> dict[str, str]:
        """The message as a chat template reads it."""
        fields = {"role": self.role, "content": self.content}
        return fields if self.name is None else fields | {"name": self.name}


class ChatBody(GenerationBody):
    """POST /v1/chat/completions: ``n`` choices."""

    NEUTRAL: ClassVar[NeutralValues] = NEUTRAL_SAMPLING | {
        "best_of": (),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "metadata": ({},),
        "web_search_options": (),
    }

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT32)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
