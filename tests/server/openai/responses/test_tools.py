"""Tools, thoughts and log probabilities in responses, through the parsers of chats."""

from __future__ import annotations

import pytest

from scheduler.request import FinishReason
from server.text.chat_template import ChatTemplate

TOOLS = [{"type": "function", "name": "f", "description": "Does.", "parameters": {"type": "object"}, "strict": None}]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
ANSWER = f"Hm.</think>Now.{CALL}"
HERMES = ChatTemplate(
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}[a]<think>"
)


@pytest.fixture(autouse=True)
def hermes(state) -> None:
    state.chat_template = HERMES


def prompt(engine) -> str:
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)


async def test_thoughts_text_and_a_call_are_items_plain_and_streamed(responses, engine) -> None:
    shown = []
    for stream in (False, True):
        engine.answer(ANSWER, FinishReason.STOP)
        if stream:
            events = await responses.events(tools=TOOLS)
            made = events[-1]["response"]
            arguments = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
            assert "".join(arguments) == '{"a": 1}'
        else:
            made = await responses.made(tools=TOOLS)
        assert (made["status"], made["tools"]) == ("completed", TOOLS)
        assert made["output"][2].pop("call_id")
        shown.append([item | {"id": ""} for item in made["output"]])
        assert made["usage"]["output_tokens_details"]["reasoning_tokens"] > 3
    assert shown[0] == shown[1]
    thought, message, call = shown[0]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Now."
    assert (call["name"], call["arguments"], call["status"]) == ("f", '{"a": 1}', "completed")


async def test_a_call_is_answered_in_the_next_response(responses, engine) -> None:
    engine.answer(ANSWER, FinishReason.STOP)
    first = await responses.made(tools=TOOLS)
    output = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "done"}
    expected = (
        '(f)[user]hi[assistant]<think>Hm.</think>Now.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        "[tool]done[a]<think>"
    )
    await responses.made(tools=TOOLS, input=[output], previous_response_id=first["id"])
    assert prompt(engine) == expected
    await responses.made(tools=TOOLS, input=[{"role": "user", "content": "hi"}, *first["output"], output])
    assert prompt(engine) == expected


async def test_an_output_without_a_text_between_calls_nothing_else(responses, engine) -> None:
    engine.answer(f"</think>{CALL}", FinishReason.STOP)
    made = await responses.made(tools=TOOLS, parallel_tool_calls=False)
    assert [item["type"] for item in made["output"]] == ["function_call"]
    assert made["parallel_tool_calls"] is False


async def test_tools_that_may_not_be_called_are_not_shown(responses, engine) -> None:
    made = await responses.made(tools=TOOLS, tool_choice="none")
    assert prompt(engine) == "[user]hi[a]<think>"
    assert made["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": ""}}, "reasoning.effort"),
    ],
)
async def test_what_a_chat_refuses_is_named_as_the_client_wrote_it(api, responses, fields, param) -> None:
    api.assert_error(await responses.create(**fields), 400, param=param)


async def test_b18_log_probabilities_are_those_of_the_text_alone(responses, engine) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    engine.answer("Hm.</think>né", FinishReason.STOP)
    plain = await responses.made(**asked)
    engine.answer("Hm.</think>né", FinishReason.STOP)
    events = await responses.events(**asked)
    [told] = [item["content"][0]["logprobs"] for item in plain["output"] if item["type"] == "message"]
    assert b"".join(bytes(token["bytes"]) for token in told) == "né".encode()
    assert {len(token["top_logprobs"]) for token in told} == {2}
    assert plain["top_logprobs"] == 2
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert [token for event in deltas for token in event["logprobs"]] == done["logprobs"] == told
    assert events[-1]["response"]["output"][1]["content"][0]["logprobs"] == told
