"""From items to the messages of a chat.

Knows both forms and no model. Invariant: items keep their order; calls, and the thoughts before them, belong to one
message of the assistant, as chat templates expect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from server.openai.responses.items import FunctionCallItem, FunctionCallOutputItem, Item, MessageItem, ReasoningItem


def chat_messages(instructions: str | None, items: Iterable[Item]) -> list[dict[str, Any]]:
    """The messages of ``items``, after a system message with the ``instructions``."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    thought = ""
    for item in items:
        match item:
            case ReasoningItem():
                thought += item.content
                continue
            case MessageItem():
                message: dict[str, Any] = {"role": item.role, "content": item.content}
                messages.append(_with_thought(message, thought) if item.role == "assistant" else message)
            case FunctionCallItem():
                if thought or not messages or messages[-1]["role"] != "assistant":
                    messages.append(_with_thought({"role": "assistant", "content": None}, thought))
                call = {"name": item.name, "arguments": item.arguments}
                calls = messages[-1].setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "type": "function", "function": call})
            case FunctionCallOutputItem():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        thought = ""
    return messages


def _with_thought(message: dict[str, Any], thought: str) -> dict[str, Any]:
    return message | {"reasoning_content": thought} if thought else message
