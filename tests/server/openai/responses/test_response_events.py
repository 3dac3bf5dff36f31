"""ResponseEvents and the conversation, with thoughts and calls."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from server.generation.generation_group import Usage
from server.openai.body import validate_body
from server.openai.chat_body import ChatBody
from server.openai.chat_session import ChatAnswer, ChatDelta, ChatEnding
from server.openai.responses.conversation import chat_messages
from server.openai.responses.items import Item, read_item
from server.openai.responses.response_body import ResponseBody
from server.openai.responses.response_events import ResponseEvents, output_items
from server.openai.responses.response_object import ResponseObject
from server.text.tool_calls.call import ToolCall, ToolCallDelta

USAGE = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=0)
TWO_CALLS = (
    ChatDelta(reasoning="Let me "),
    ChatDelta(reasoning="see."),
    ChatDelta(content="I look."),
    ChatDelta(tool_calls=(ToolCallDelta(0, "", "call_1", "look"),)),
    ChatDelta(tool_calls=(ToolCallDelta(0, '{"at":'), ToolCallDelta(0, '"a"}'), ToolCallDelta(1, "", "call_2", "go"))),
    ChatDelta(tool_calls=(ToolCallDelta(1, "{}"),)),
)


def make_events() -> tuple[ResponseEvents, list[tuple[dict[str, Any], tuple[Item, ...]]]]:
    body = ResponseBody(model="m", input="hi")
    chat = validate_body(ChatBody, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    kept: list[tuple[dict[str, Any], tuple[Item, ...]]] = []
    events = ResponseEvents(
        ResponseObject("resp_1", 5, "m", body, chat), lambda shown, output: kept.append((shown, output))
    )
    return events, kept


def played(read_stream: Any, deltas: tuple[ChatDelta, ...], finish_reason: str) -> list[Any]:
    events, _ = make_events()
    text = events.opening(USAGE)
    for delta in (*deltas, ChatDelta(last=ChatEnding(finish_reason))):
        text += events.more(delta)
    return read_stream((text + events.closing(USAGE)).decode())


def test_e12_thoughts_text_and_two_calls_are_items_one_after_another(read_stream) -> None:
    events = played(read_stream, TWO_CALLS, "tool_calls")
    added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    assert added == ["reasoning", "message", "function_call", "function_call"]
    story = [(event["type"].removeprefix("response."), event["output_index"]) for event in events[2:-1]]
    assert story == [
        ("output_item.added", 0), ("content_part.added", 0),
        ("reasoning_text.delta", 0), ("reasoning_text.delta", 0), ("reasoning_text.done", 0),
        ("content_part.done", 0), ("output_item.done", 0),
        ("output_item.added", 1), ("content_part.added", 1),
        ("output_text.delta", 1), ("output_text.done", 1),
        ("content_part.done", 1), ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2), ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2), ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 3), ("output_item.done", 3),
    ]  # fmt: skip
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    calls = [(item["call_id"], item["name"], item["arguments"], item["status"]) for item in output[2:]]
    assert calls == [("call_1", "look", '{"at":"a"}', "completed"), ("call_2", "go", "{}", "completed")]


def test_e14_a_call_that_was_cut_is_incomplete_with_the_arguments_it_has(read_stream) -> None:
    events = played(read_stream, TWO_CALLS[3:4], "length")
    assert events[-1]["type"] == "response.incomplete"
    [call] = events[-1]["response"]["output"]
    assert (call["name"], call["arguments"], call["status"]) == ("look", "", "incomplete")


def test_a_whole_answer_has_the_items_of_a_streamed_one(read_stream) -> None:
    calls = (ToolCall("call_1", "look", '{"at":"a"}'), ToolCall("call_2", "go", "{}"))
    answer = ChatAnswer("I look.", "Let me see.", calls, ChatEnding("tool_calls"))
    streamed = played(read_stream, TWO_CALLS, "tool_calls")[-1]["response"]["output"]
    plain = [item.shown() for item in output_items(answer)]
    assert [item | {"id": ""} for item in plain] == [item | {"id": ""} for item in streamed]


def test_a_call_alone_has_no_message_beside_it() -> None:
    [item] = output_items(ChatAnswer(None, None, (ToolCall("c", "f", "{"),), ChatEnding("length")))
    assert item.shown() | {"id": ""} == {
        "id": "", "type": "function_call", "status": "incomplete", "call_id": "c", "name": "f", "arguments": "{",
    }  # fmt: skip


def test_calls_and_the_thoughts_before_them_are_one_message_of_the_assistant() -> None:
    calls = (ToolCall("call_1", "look", "{}"), ToolCall("call_2", "go", "{}"))
    shown = [item.shown() for item in output_items(ChatAnswer("I look.", "Hm.", calls, ChatEnding("tool_calls")))]
    outputs = [{"type": "function_call_output", "call_id": f"call_{number}", "output": "ok"} for number in (1, 2)]
    again = [{"type": "function_call", "call_id": "call_3", "name": "go", "arguments": "{}"}]
    given = [{"role": "user", "content": "hi"}, *shown, *outputs, *again]
    items = [read_item(fields, "input") for fields in orjson.loads(orjson.dumps(given))]
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for number, name in ((1, "look"), (2, "go"), (3, "go"))
    ]
    assert chat_messages("Be brief.", items) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": made[:2]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        {"role": "tool", "tool_call_id": "call_2", "content": "ok"},
        {"role": "assistant", "content": None, "tool_calls": made[2:]},
    ]


@pytest.mark.parametrize("calls", [TWO_CALLS[3:5], TWO_CALLS[2:3]])
def test_a_failure_shows_what_there_was(read_stream, calls) -> None:
    events, kept = make_events()
    text = events.opening(USAGE) + b"".join(events.more(delta) for delta in calls)
    from server.errors import internal_error

    failed = read_stream((text + events.failure(internal_error())).decode())[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["output"][-1]["status"] == "incomplete"
    assert kept == []
