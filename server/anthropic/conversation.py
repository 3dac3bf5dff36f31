"""From Anthropic's messages to those of a chat.

Knows both forms and no model. Invariants: blocks keep their order; neighbouring messages of one role are one turn, as
Anthropic has it and as templates expect; the result of a tool is a message of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from server.anthropic.blocks import (
    PARAGRAPH,
    AssistantBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserBlock,
)

Turn = tuple[str, Sequence[UserBlock | AssistantBlock]]  # the role and what was said


def chat_messages(system: str, turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """The messages of the turns, after the ``system`` message if there is one."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for role, blocks in turns:
        if role == "user":
            _add_user(messages, blocks)
        else:
            _add_assistant(messages, blocks)
    return messages


def _add_user(messages: list[dict[str, Any]], blocks: Sequence[UserBlock | AssistantBlock]) -> None:
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": block.shown})
        elif isinstance(block, TextBlock):
            _add_text(_turn(messages, "user"), "content", block.text)


def _add_assistant(messages: list[dict[str, Any]], blocks: Sequence[UserBlock | AssistantBlock]) -> None:
    message = _turn(messages, "assistant")
    for block in blocks:
        if isinstance(block, TextBlock):
            _add_text(message, "content", block.text)
        elif isinstance(block, ThinkingBlock):
            _add_text(message, "reasoning_content", block.thinking)
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": orjson.dumps(block.input).decode()}
            calls = message.setdefault("tool_calls", [])
            calls.append({"id": block.id, "type": "function", "function": function})


def _turn(messages: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """The last message if it is of this role, else a new one."""
    if not messages or messages[-1]["role"] != role:
        messages.append({"role": role, "content": None if role == "assistant" else ""})
    return messages[-1]


def _add_text(message: dict[str, Any], name: str, text: str) -> None:
    before = message.get(name)
    message[name] = before + PARAGRAPH + text if before else text
