"""TokenizeBody and DetokenizeBody: the bodies of POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, model_validator

from server.openai.body import Body
from server.openai.prompt_forms import read_token_ids

# Fields of a conversation, which make no sense beside ``prompt``.
CHAT_FIELDS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


def _read_ids(value: object) -> list[int]:
    if not isinstance(value, list):
        raise ValueError("must be a list of token ids")
    return read_token_ids(value) if value else value


class TokenizeBody(Body):
    """POST /tokenize: ``prompt``, as a completion would read it, or ``messages``, as a chat would.

    ``add_special_tokens`` is true for a prompt and false for messages, whose template writes its own, unless it is
    given. What is in ``messages`` and beside them is the chat's to validate.
    """

    model: str | None = Field(default=None, min_length=1)
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        for name in CHAT_FIELDS:
            if self.prompt is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} goes with messages, not with a prompt")
        return self

    def chat_fields(self, model: str) -> dict[str, Any]:
        """The conversation as a body of POST /v1/chat/completions."""
        given = {name: value for name in CHAT_FIELDS if (value := getattr(self, name)) is not None}
        return {"model": model, "messages": self.messages, **given}


class DetokenizeBody(Body):
    """POST /detokenize: ids in any number up to the context, special ones included in the text unless skipped."""

    model: str | None = Field(default=None, min_length=1)
    tokens: Annotated[list[int], PlainValidator(_read_ids, list[int])]
    skip_special_tokens: bool | None = None
