"""Tools and earlier calls in words, for chat templates that know nothing of them.

Makes a conversation of plain messages: the tools are described in a system message, an earlier call is the JSON that
the description asks for, and what a tool answered is told by the user, unless the template has a role for tools. Knows
neither the API nor templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Message = dict[str, Any]

_INTRODUCTION: Final = "You may call these functions, each described by a JSON object:"
_INSTRUCTION: Final = (
    'To call one, answer with a JSON object and nothing else: {"name": "...", "arguments": {...}}. To call several, '
    "answer with a JSON array of such objects. If none of them helps, answer in plain words."
)


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """The text that offers ``tools``, as chat templates get them, to a model that was never taught how to call any."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    return "\n".join([_INTRODUCTION, *lines, _INSTRUCTION])


def offer_in_words(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation with the tools described in its system message, which is added where there is none."""
    description = describe_tools(tools)
    first = messages[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{description}"}, *messages[1:]]
    return [{"role": "system", "content": description}, *messages]


def spell_out_calls(messages: Sequence[Message], *, has_tool_role: bool) -> list[Message]:
    """The conversation with its calls as text, and with the answers of tools as the user's words."""
    names: dict[str, str] = {}
    plain: list[Message] = []
    after_answer = False
    for message in messages:
        is_answer = message["role"] == "tool" and not has_tool_role
        if calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls}
            message = _without_calls(message, calls)
        elif is_answer:
            name = names.get(message["tool_call_id"], message.get("name", "the function"))
            message = {"role": "user", "content": f"{name} returned: {message['content']}"}
            if after_answer:  # one message, since roles must alternate in many templates
                message["content"] = f"{plain.pop()['content']}\n{message['content']}"
        plain.append(message)
        after_answer = is_answer
    return plain


def _without_calls(message: Message, calls: Sequence[Mapping[str, Any]]) -> Message:
    functions = [call["function"] for call in calls]
    text = json.dumps(functions[0] if len(functions) == 1 else functions, ensure_ascii=False)
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
