"""From Anthropic's turns to a chat's messages."""

from __future__ import annotations

from server.anthropic.blocks import read_blocks
from server.anthropic.conversation import chat_messages
from server.anthropic.message_body import MessageBody
from server.openai.body import validate_body


def test_calls_and_results_keep_their_order_and_their_ids() -> None:
    said = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "a"}},
        {"type": "tool_use", "id": "t2", "name": "go", "input": {}},
    ]
    returned = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "ok"}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "gone", "is_error": True},
        {"type": "text", "text": "And?"},
    ]
    turns = [
        ("user", read_blocks("user", "hi", "")),
        ("assistant", read_blocks("assistant", said, "")),
        ("user", read_blocks("user", returned, "")),
    ]
    assert chat_messages("", turns) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at":"a"}'}},
                {"id": "t2", "type": "function", "function": {"name": "go", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "ok"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: gone"},
        {"role": "user", "content": "And?"},
    ]


def test_a_last_message_of_the_assistant_is_gone_on_with() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]
    chat = validate_body(MessageBody, {"model": "m", "max_tokens": 5, "messages": messages}).chat_fields()
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)


def test_tools_and_their_choice_are_those_of_a_chat() -> None:
    schema = {"type": "object", "properties": {}}
    given = {
        "model": "m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "description": "d", "input_schema": schema, "cache_control": {"type": "ephemeral"}}],
    }
    choices = {
        "auto": "auto",
        "any": "required",
        "none": "none",
        "tool": {"type": "function", "function": {"name": "f"}},
    }
    for kind, choice in choices.items():
        asked = {"type": kind} | ({"name": "f"} if kind == "tool" else {})
        chat = validate_body(MessageBody, given | {"tool_choice": asked}).chat_fields()
        assert chat["tools"] == [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
        ]
        assert chat["tool_choice"] == choice
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert validate_body(MessageBody, given | {"tool_choice": one}).chat_fields()["parallel_tool_calls"] is False
