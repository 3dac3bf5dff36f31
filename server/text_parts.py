"""The tokenizer and the chat template of a checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.config import Checkpoint
from server.text.chat_template import ChatTemplate, ChatTemplates
from server.text.chat_template_sources import (
    PLAIN_TRANSCRIPT_NAME,
    templates_from_directory,
    templates_from_gguf,
    templates_from_option,
)
from server.text.errors import ChatTemplateError
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextParts:
    """What the API process needs of a model; ``seconds`` is how long loading it took."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    tool_use_template: ChatTemplate | None
    seconds: float


def load_text_parts(checkpoint: Checkpoint, chat_template: str | None) -> TextParts:
    """Load both. ``chat_template`` is the user's choice and wins over the model's own.

    A model without a template gets none, except the demo model, which gets the plain transcript. Raises TextError or
    CheckpointError.
    """
    start = time.monotonic()
    if chat_template is None and checkpoint.is_demo:
        chat_template = PLAIN_TRANSCRIPT_NAME
    if checkpoint.format == "gguf":
        tokenizer = Tokenizer.from_gguf(checkpoint.gguf_metadata())
    else:
        tokenizer = Tokenizer.from_directory(checkpoint.path)
    try:
        templates = _own_templates(checkpoint) if chat_template is None else templates_from_option(chat_template)
        template = None if templates is None else templates.select()
        tool_use = None if templates is None else templates.select(with_tools=True)
    except ChatTemplateError as error:
        if chat_template is not None:
            raise
        raise ChatTemplateError(f"{checkpoint.path}: {error} Another can be given with --chat-template.") from error
    return TextParts(tokenizer, template, tool_use, time.monotonic() - start)


def _own_templates(checkpoint: Checkpoint) -> ChatTemplates | None:
    if checkpoint.format == "gguf":
        return templates_from_gguf(checkpoint.gguf_metadata())
    return templates_from_directory(checkpoint.path)
