"""MessageObject: the assistant's message as Anthropic's API shows it, whole or while it is streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from server.generation.generation_group import Usage
from server.http.nesting import is_deeper
from server.openai.chat_session import ChatAnswer, ChatEnding

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


@dataclass(frozen=True, slots=True)
class MessageObject:
    """``stop_sequences`` are the client's own: what else ends a turn is not told."""

    id: str
    model: str
    stop_sequences: Sequence[str]

    def opening(self, usage: Usage) -> dict[str, Any]:
        """The message before its first block."""
        return self._shown([], {"stop_reason": None, "stop_sequence": None}, usage)

    def whole(self, answer: ChatAnswer, usage: Usage) -> dict[str, Any]:
        return self._shown(content_blocks(answer), self.ending(answer.last), usage)

    def ending(self, last: ChatEnding) -> dict[str, Any]:
        """Why the message ended."""
        if isinstance(last.stop_reason, str) and last.stop_reason in self.stop_sequences:
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
        return {"stop_reason": STOP_REASONS[last.finish_reason], "stop_sequence": None}

    def _shown(self, content: list[dict[str, Any]], ending: dict[str, Any], usage: Usage) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **ending,
            "usage": message_usage(usage),
        }


def content_blocks(answer: ChatAnswer) -> list[dict[str, Any]]:
    """Thoughts, text and calls. The input of a call that was cut short is empty: it is no JSON yet.

    So is one that is nested too deep to be written.
    """
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content})
    for call in answer.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) and not is_deeper(value) else {}


def message_usage(usage: Usage) -> dict[str, int]:
    """Here input tokens are those that were computed; the cached ones are counted beside them."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
