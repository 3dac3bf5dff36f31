"""POST /v1/messages and count_tokens: a chat in Anthropic's words, plain and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from engine.client import EngineDied
from scheduler.request import FinishReason
from server.anthropic.message_events import MessageEvents
from server.anthropic.message_object import MessageObject, content_blocks
from server.app import create_app
from server.auth import ApiKeys
from server.generation.generation_group import Usage
from server.openai.chat_session import ChatAnswer, ChatDelta, ChatEnding
from server.text.chat_template import ChatTemplate
from server.text.tool_calls.call import ToolCall, ToolCallDelta

USAGE = Usage(prompt_tokens=30, completion_tokens=4, cached_tokens=10)
HI = [{"role": "user", "content": "hi"}]


async def send(api: Any, **fields: Any) -> httpx.Response:
    return await api.http.post("/v1/messages", json={"model": api.model, "max_tokens": 9, "messages": HI} | fields)


def prompt(engine: Any) -> str:
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)


def read_events(text: str) -> list[Any]:
    events = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        events.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def assert_error(response: httpx.Response, status: int, kind: str) -> str:
    """Anthropic's error object and nothing else; its message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"].keys() == {"type", "message"}
    message = body["error"]["message"]
    assert isinstance(message, str)
    return message


async def test_a_message_is_answered_with_one(api, engine) -> None:
    engine.answer("Hello.", FinishReason.STOP, cached=4)
    response = await send(api)
    assert response.json() == {
        "id": engine.requests[0].request_id.removesuffix("-0-0"),
        "type": "message",
        "role": "assistant",
        "model": api.model,
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 15,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 7,
        },
    }


async def test_what_was_asked_for_reaches_the_engine(api, engine) -> None:
    await send(api, temperature=0.5, top_p=0.9, top_k=7, metadata={"user_id": "u"})
    sampling = engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (9, 0.5, 0.9, 7)


async def test_system_turns_and_blocks_become_the_conversation(api, engine) -> None:
    await send(
        api,
        system=[
            {"type": "text", "text": "Be"},
            {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
            {"role": "user", "content": "e"},
        ],
    )
    assert prompt(engine) == "[system]Be\n\nbrief.[user]a\n\nb\n\nc[assistant]d[user]e[assistant]"


@pytest.mark.parametrize(
    ("text", "finish", "stops", "ended"),
    [
        ("ab", FinishReason.STOP, [], ("end_turn", None)),
        ("ab", FinishReason.LENGTH, [], ("max_tokens", None)),
        ("abSTOPc", None, ["STOP"], ("stop_sequence", "STOP")),
        ("ab[user]c", None, ["STOP"], ("end_turn", None)),
    ],
)
async def test_a_message_says_why_it_ended(api, engine, text, finish, stops, ended) -> None:
    for stream in (False, True):
        engine.answer(text, finish)
        response = await send(api, stop_sequences=stops, stream=stream)
        shown = read_events(response.text)[-2]["delta"] if stream else response.json()
        assert (shown["stop_reason"], shown["stop_sequence"]) == ended


async def test_a_stream_tells_the_whole_story_in_order(api, engine) -> None:
    engine.answer("héy", FinishReason.STOP, cached=4)
    response = await send(api, stream=True)
    events = read_events(response.text)
    assert [event["type"] for event in events] == [
        "message_start", "ping", "content_block_start", *["content_block_delta"] * 3, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["input_tokens"]) == ([], None, 15)
    assert start["usage"]["cache_read_input_tokens"] == 4
    assert events[2] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert "".join(event["delta"]["text"] for event in events[3:6]) == "héy"
    assert events[-2]["usage"]["output_tokens"] == 5
    assert response.headers["x-request-id"] == start["id"]


def played(deltas: list[ChatDelta], ending: ChatEnding) -> list[Any]:
    events = MessageEvents(MessageObject("msg-1", "m", ()))
    text = b"".join([events.opening(USAGE), *map(events.more, deltas), events.more(ChatDelta(last=ending))])
    return read_events((text + events.closing(USAGE)).decode())


def test_e12_thoughts_text_and_two_calls_are_blocks_one_after_another() -> None:
    calls = (ToolCall("toolu_1", "look", '{"at":"a"}'), ToolCall("toolu_2", "go", "{}"))
    plain = content_blocks(ChatAnswer("I look.", "Hm.", calls, ChatEnding("tool_calls")))
    assert plain == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "a"}},
        {"type": "tool_use", "id": "toolu_2", "name": "go", "input": {}},
    ]
    events = played(
        [
            ChatDelta(reasoning="H"),
            ChatDelta(reasoning="m."),
            ChatDelta(content="I look.", tool_calls=(ToolCallDelta(0, "", "toolu_1", "look"),)),
            ChatDelta(tool_calls=(ToolCallDelta(0, '{"at":'), ToolCallDelta(0, '"a"}'))),
            ChatDelta(tool_calls=(ToolCallDelta(1, "{}", "toolu_2", "go"),)),
        ],
        ChatEnding("tool_calls"),
    )
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0, 1, 2, 3]
    assert [event["content_block"]["type"] for event in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert starts[2]["content_block"] == {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    deltas = [(event["index"], event["delta"]) for event in events if event["type"] == "content_block_delta"]
    assert deltas == [
        (0, {"type": "thinking_delta", "thinking": "H"}),
        (0, {"type": "thinking_delta", "thinking": "m."}),
        (1, {"type": "text_delta", "text": "I look."}),
        (2, {"type": "input_json_delta", "partial_json": '{"at":'}),
        (2, {"type": "input_json_delta", "partial_json": '"a"}'}),
        (3, {"type": "input_json_delta", "partial_json": "{}"}),
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_e14_the_input_of_a_call_that_was_cut_is_empty() -> None:
    [block] = content_blocks(ChatAnswer(None, None, (ToolCall("t", "f", '{"a": [1,'),), ChatEnding("length")))
    assert block == {"type": "tool_use", "id": "t", "name": "f", "input": {}}


async def test_d17_a_failure_within_a_stream_is_an_error_event(api, engine) -> None:
    engine.answer("abc", None).append(EngineDied("the engine process died"))
    events = read_events((await send(api, stream=True)).text)
    assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "the engine process died"}}
    assert [event["type"] for event in events].count("content_block_delta") == 3


async def test_when_the_client_leaves_the_answer_ends(api, engine) -> None:
    for stream in (False, True):
        leave, never = asyncio.Event(), asyncio.Event()
        engine.answer("a", None).extend([leave.set, never])
        body = orjson.dumps({"model": api.model, "max_tokens": 9, "messages": HI, "stream": stream})
        async for _ in api.raw("/v1/messages", body, leave):
            pass
    assert len(engine.aborted) == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.type"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
async def test_a_wrong_field_is_named_before_the_engine_hears_of_it(api, engine, fields, named) -> None:
    message = assert_error(await send(api, **fields), 400, "invalid_request_error")
    assert message.startswith((f"{named}: ", f"unsupported parameter: {named}", f"unknown parameter: {named}")) or (
        message == f"missing parameter: {named}"
    )
    assert engine.requests == []


async def test_what_the_template_refuses_is_told_in_its_words(api, state) -> None:
    state.chat_template = ChatTemplate("{{ raise_exception('No system.') }}")
    assert assert_error(await send(api), 400, "invalid_request_error") == "messages: No system."


async def test_every_refusal_has_anthropics_shape(api, state, engine) -> None:
    assert "other" in assert_error(await send(api, model="other"), 404, "not_found_error")
    assert_error(await send(api, max_tokens=600), 400, "invalid_request_error")
    assert_error(await api.http.post("/v1/messages", content=b"{"), 400, "invalid_request_error")
    assert_error(await api.http.post("/v1/messages", content=b"x" * 30_000), 413, "request_too_large")
    assert_error(await api.http.get("/v1/messages"), 405, "invalid_request_error")
    assert_error(await api.http.post("/v1/messages/batches"), 404, "not_found_error")
    engine.scripts.append([engine.failure("queue_full", retry_after=3.0)])
    full = await send(api, stream=True)
    assert_error(full, 429, "rate_limit_error")
    assert full.headers["retry-after"] == "3"
    state.draining = True
    assert_error(await send(api), 503, "overloaded_error")


async def test_a_bug_shows_no_more_than_that_it_happened(api, engine) -> None:
    engine.scripts.append([RuntimeError("secret")])
    assert "secret" not in assert_error(await send(api), 500, "api_error")


async def test_the_key_may_come_in_the_header_that_anthropics_clients_use(api, state) -> None:
    state.api_keys = ApiKeys(["one", "two"])
    guarded = type(api)(create_app(state), state)
    assert "x-api-key" in assert_error(await send(guarded), 401, "authentication_error")
    guarded.http.headers["x-api-key"] = "three"
    assert_error(await send(guarded), 401, "authentication_error")
    guarded.http.headers["x-api-key"] = "two"
    assert (await send(guarded)).status_code == 200
    assert state.client.requests[-1].tenant == "key-2"
    await guarded.http.aclose()


async def test_tokens_are_counted_as_the_model_reads_them(api, engine) -> None:
    fields = {"model": api.model, "system": "Be brief.", "messages": HI}
    counted = await api.http.post("/v1/messages/count_tokens", json=fields)
    await send(api, system="Be brief.")
    assert counted.json() == {"input_tokens": len(engine.requests[0].prompt_token_ids)}
    assert len(engine.requests) == 1


async def test_counting_takes_no_max_tokens_and_its_errors_have_anthropics_shape(api) -> None:
    fields = {"model": api.model, "messages": HI, "max_tokens": 5}
    response = await api.http.post("/v1/messages/count_tokens", json=fields)
    assert "max_tokens" in assert_error(response, 400, "invalid_request_error")
    response = await api.http.post("/v1/messages/count_tokens", json={"model": "other", "messages": HI})
    assert_error(response, 404, "not_found_error")


TOOLS = [{"name": "f", "description": "Does.", "input_schema": {"type": "object"}}]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
HERMES = ChatTemplate(
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}[no thoughts]{% endif %}[a]<think>"
)


async def test_a_tool_is_called_and_its_result_read(api, engine, state) -> None:
    state.chat_template = HERMES
    messages = [*HI]
    for stream in (False, True):
        engine.answer(f"Hm.</think>Now.{CALL}", FinishReason.STOP)
        response = await send(api, tools=TOOLS, stream=stream)
        if stream:
            events = read_events(response.text)
            assert events[-2]["delta"]["stop_reason"] == "tool_use"
            pieces = [e["delta"] for e in events if e["type"] == "content_block_delta"]
            assert "".join(piece.get("partial_json", "") for piece in pieces) == '{"a": 1}'
            assert "".join(piece.get("thinking", "") for piece in pieces) == "Hm."
        else:
            said = response.json()
    assert said["stop_reason"] == "tool_use"
    assert [block["type"] for block in said["content"]] == ["thinking", "text", "tool_use"]
    call = said["content"][2]
    assert (call["name"], call["input"]) == ("f", {"a": 1})
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
    messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": [result]}]
    await send(api, tools=TOOLS, messages=messages)
    read = '(f)[user]hi[assistant]Now.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>[tool]done[a]<think>'
    assert prompt(engine) == read


async def test_a_last_message_of_the_assistant_is_gone_on_with(api, engine) -> None:
    await send(api, messages=[*HI, {"role": "assistant", "content": "Well, "}])
    assert prompt(engine) == "[user]hi[assistant]Well, "


async def test_thinking_can_be_switched_off_where_the_template_knows_how(api, engine, state) -> None:
    state.chat_template = HERMES
    await send(api, thinking={"type": "disabled"})
    assert prompt(engine) == "[user]hi[no thoughts][a]<think>"
    await send(api, thinking={"type": "adaptive"})
    assert prompt(engine) == "[user]hi[a]<think>"


@pytest.mark.parametrize("levels", [241, 300, 1000])
async def test_the_input_of_an_earlier_call_that_is_nested_too_deep_is_refused(api, engine, levels) -> None:
    call = '{"type":"tool_use","id":"a","name":"f","input":' + '{"a":' * levels + "1" + "}" * levels + "}"
    body = f'{{"model":"{api.model}","max_tokens":9,"messages":[{{"role":"assistant","content":[{call}]}}]}}'
    message = assert_error(await api.http.post("/v1/messages", content=body), 400, "invalid_request_error")
    assert "240 levels" in message
    assert engine.requests == []


def test_the_input_of_a_call_that_the_model_nested_too_deep_is_left_out() -> None:
    call = ToolCall("a", "f", '{"a":' * 300 + "1" + "}" * 300)
    answer = ChatAnswer(None, None, (call,), ChatEnding("tool_calls"))
    assert content_blocks(answer) == [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]
