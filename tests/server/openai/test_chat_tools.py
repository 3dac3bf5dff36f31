"""Tools in chats: what is offered and what is called, plain and streamed. Ids like E12 name cases of other servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.grammar_source import source_of
from scheduler.request import FinishReason
from server.text.chat_template import ChatTemplate
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer

TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "Does.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g"}},
]
HERMES = ChatTemplate(
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F_STRICT = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
G_STRICT = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {"b": [2, "é"]}}\n</tool_call>'


@pytest.fixture(autouse=True)
def hermes(state) -> None:
    state.chat_template = HERMES


def prompt_of(engine) -> str:
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)


def message_of_stream(events: list[Any]) -> tuple[dict[str, Any], str]:
    """The message that a client puts together from deltas, and its finish reason."""
    message: dict[str, Any] = {"content": None, "calls": []}
    reasons = []
    for event in events[:-1]:
        [choice] = event["choices"]
        delta = choice["delta"]
        assert not (delta.keys() - {"role", "content", "refusal", "tool_calls"})
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["calls"])
                assert call.keys() == {"index", "id", "type", "function"}
                assert call["type"] == "function"
                message["calls"].append([call["id"], call["function"]["name"], ""])
            else:
                assert call.keys() == {"index", "function"}
                assert call["function"].keys() == {"arguments"}
            message["calls"][call["index"]][2] += call["function"]["arguments"]
        reasons.append(choice["finish_reason"])
    assert set(reasons[:-1]) == {None}
    return message, reasons[-1]


def message_of_answer(response) -> tuple[dict[str, Any], str]:
    [choice] = response.json()["choices"]
    message = choice["message"]
    calls = [[c["id"], c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", ())]
    assert all(call.keys() == {"id", "type", "function"} for call in message.get("tool_calls", ()))
    return {"content": message["content"] or None, "calls": calls}, choice["finish_reason"]


async def both(api, engine, text: str, finish=FinishReason.STOP, per_delta: int = 1, **fields: Any):
    """What the same output becomes, plain and streamed; ids, which are random, become numbers."""
    answers = []
    for stream in (False, True):
        engine.answer(text, finish, per_delta=per_delta)
        response = await api.chat(tools=TOOLS, stream=stream, **fields)
        assert response.status_code == 200, response.text
        message, reason = message_of_stream(api.events(response.text)) if stream else message_of_answer(response)
        ids = [call[0] for call in message["calls"]]
        assert len(set(ids)) == len(ids)
        answers.append(
            ({"content": message["content"], "calls": [tuple(call[1:]) for call in message["calls"]]}, reason)
        )
    assert answers[0] == answers[1]
    return answers[0]


@pytest.mark.parametrize("per_delta", [1, 3, 1000])
async def test_e12_e13_two_calls_have_places_ids_and_names_once_and_end_by_tool_calls(api, engine, per_delta) -> None:
    message, reason = await both(api, engine, f"Well.\n{F}\n{G}\n", per_delta=per_delta)
    assert message == {"content": "Well.", "calls": [("f", '{"a": 1}'), ("g", '{"b": [2, "é"]}')]}
    assert reason == "tool_calls"


async def test_a_message_that_only_calls_has_no_content(api, engine) -> None:
    assert await both(api, engine, F) == ({"content": None, "calls": [("f", '{"a": 1}')]}, "tool_calls")
    engine.answer(F, FinishReason.STOP)
    assert (await api.chat(tools=TOOLS)).json()["choices"][0]["message"]["content"] is None


async def test_a_message_that_calls_nothing_is_content(api, engine) -> None:
    assert await both(api, engine, "a < b ") == ({"content": "a < b ", "calls": []}, "stop")


async def test_e15_a_streamed_call_is_the_standard_delta_without_empty_ones(api, engine) -> None:
    engine.answer(F, FinishReason.STOP)
    events = api.events((await api.chat(tools=TOOLS, stream=True)).text)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    [first] = deltas[1]["tool_calls"]
    assert first.pop("id").startswith("call_")
    assert first == {"index": 0, "type": "function", "function": {"name": "f", "arguments": ""}}
    assert deltas[2:-1] == [{"tool_calls": [{"index": 0, "function": {"arguments": one}}]} for one in '{"a": 1}']
    assert deltas[-1] == {}


@pytest.mark.parametrize("limit", range(1, len(F)))
async def test_e14_a_call_that_max_tokens_cuts_ends_by_length_with_what_there_is(api, engine, limit) -> None:
    message, reason = await both(api, engine, F[:limit], FinishReason.LENGTH)
    assert reason == "length"
    assert "<tool_call>" not in (message["content"] or "")
    for name, arguments in message["calls"]:
        assert name == "f"
        assert '{"a": 1}'.startswith(arguments)


async def test_e14_partial_arguments(api, engine) -> None:
    message, _ = await both(api, engine, F[: F.index("1")], FinishReason.LENGTH)
    assert message == {"content": None, "calls": [("f", '{"a": ')]}


async def test_a_malformed_call_is_content(api, engine) -> None:
    text = "<tool_call>f(1)</tool_call>"
    assert await both(api, engine, text) == ({"content": text, "calls": []}, "stop")


async def test_one_call_at_most_without_parallel_tool_calls(api, engine) -> None:
    message, reason = await both(api, engine, f"{F}\n{G}", parallel_tool_calls=False)
    assert (message, reason) == ({"content": None, "calls": [("f", '{"a": 1}')]}, "tool_calls")


async def test_d08_d09_a_stop_string_is_searched_before_calls_and_its_held_tail_comes_through_them(api, engine) -> None:
    assert await both(api, engine, f"{F} x", stop="\nzzz") == (
        {"content": " x", "calls": [("f", '{"a": 1}')]},
        "tool_calls",
    )
    message, reason = await both(api, engine, F, FinishReason.LENGTH, stop="</tool_call>!")
    assert message == {"content": None, "calls": [("f", '{"a": 1}')]}
    assert reason == "length"


async def test_n_choices_call_for_themselves(api, engine) -> None:
    for text in (F, "no", G):
        engine.answer(text, FinishReason.STOP)
    choices = (await api.chat(tools=TOOLS, n=3)).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [choice["message"]["content"] for choice in choices] == [None, "no", None]
    assert choices[2]["message"]["tool_calls"][0]["function"]["name"] == "g"


async def test_usage_of_a_stream_with_calls(api, engine) -> None:
    engine.answer(F, FinishReason.STOP)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = api.events((await api.chat(tools=TOOLS, stream=True, stream_options=options)).text)
    assert last["usage"]["completion_tokens"] == len(F) + 1
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == len(F) + 1


async def test_the_template_gets_the_tools_whole(api, engine, state) -> None:
    state.chat_template = ChatTemplate("<tool_call>{{ tools | tojson }}")
    await api.chat(tools=TOOLS)
    shown = json.loads(prompt_of(engine).removeprefix("<tool_call>"))
    assert shown == [
        TOOLS[0],
        {
            "type": "function",
            "function": {"name": "g", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]


async def test_with_tool_choice_none_tools_are_neither_shown_nor_called(api, engine) -> None:
    engine.answer(F, FinishReason.STOP)
    [choice] = (await api.chat(tools=TOOLS, tool_choice="none")).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (F, "stop")
    assert prompt_of(engine) == "[user]hi"


async def test_without_tools_markers_are_content(api, engine) -> None:
    engine.answer(F, FinishReason.STOP)
    assert (await api.chat()).json()["choices"][0]["message"]["content"] == F


async def test_a_model_with_a_template_for_tools_uses_it_for_them_alone(api, engine, state) -> None:
    state.tool_use_template = ChatTemplate("[TOOL_CALLS]{{ tools | length }}")
    engine.answer('[TOOL_CALLS][{"name": "f", "arguments": {}}]', FinishReason.STOP)
    message = (await api.chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert len(message["tool_calls"][0]["id"]) == 9
    assert prompt_of(engine) == "[TOOL_CALLS]2"
    await api.chat()
    assert prompt_of(engine) == "[user]hi"


async def test_markers_that_are_control_tokens_are_read_and_shown_only_where_calls_are_looked_for(
    api, engine, state
) -> None:
    markers = ["<|end|>", "<tool_call>", "</tool_call>"]
    engine.tokenizer = state.tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*BYTE_LEVEL_ALPHABET, *markers],
            "tokenizer.ggml.token_type": [1] * 256 + [3] * len(markers),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": 256,
        }
    )
    assert await both(api, engine, F) == ({"content": None, "calls": [("f", '{"a": 1}')]}, "tool_calls")
    assert engine.tokenizer.encode(F)[0] == 257
    engine.answer(F, FinishReason.STOP)
    content = (await api.chat()).json()["choices"][0]["message"]["content"]
    assert content == F.removeprefix("<tool_call>").removesuffix("</tool_call>")


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
HISTORY = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]},
]


async def test_earlier_calls_reach_the_template_with_arguments_as_objects(api, engine) -> None:
    await api.chat(messages=HISTORY)
    assert prompt_of(engine) == (
        '[user]hi[assistant]None<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>[tool]42'
    )


@pytest.mark.parametrize(("arguments", "shown"), [("", "{}"), ("{oops", '"{oops"'), ("[1]", '"[1]"')])
async def test_arguments_that_are_no_object_are_taken_as_the_model_wrote_them(api, engine, arguments, shown) -> None:
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    await api.chat(messages=[*HISTORY[:1], message])
    assert f'"arguments": {shown}}}' in prompt_of(engine)


async def test_an_answer_with_calls_can_be_sent_back_as_it_came(api, engine) -> None:
    engine.answer(F, FinishReason.STOP)
    message = (await api.chat(tools=TOOLS)).json()["choices"][0]["message"]
    message |= {"function_call": None, "audio": None, "annotations": []}
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}
    assert (await api.chat(tools=TOOLS, messages=[HISTORY[0], message, result])).status_code == 200


class TestATemplateWithoutTools:
    """Models that were taught no way of calling."""

    PLAIN = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")

    @pytest.fixture(autouse=True)
    def plain(self, state, hermes) -> None:
        state.chat_template = self.PLAIN
        state.client._become_ready(state.client.make_ready(max_model_len=4096, num_pages=400))

    async def test_tools_are_described_in_the_system_message(self, api, engine) -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        await api.chat(tools=TOOLS, messages=messages)
        prompt = prompt_of(engine)
        assert prompt.startswith("[system]Be brief.\n\nYou may call these functions")
        assert json.dumps(TOOLS[0]["function"]) in prompt
        assert prompt.endswith("[user]hi")

    async def test_without_a_system_message_there_is_one(self, api, engine) -> None:
        await api.chat(tools=TOOLS)
        assert prompt_of(engine).startswith("[system]You may call these functions")

    async def test_a_call_is_the_json_that_was_asked_for(self, api, engine) -> None:
        message, reason = await both(api, engine, ' {"name": "f", "arguments": {"a": 1}}')
        assert (message, reason) == ({"content": None, "calls": [("f", '{"a": 1}')]}, "tool_calls")

    async def test_json_that_calls_no_offered_tool_is_content(self, api, engine) -> None:
        text = '{"name": "Ann", "arguments": {}}'
        assert await both(api, engine, text) == ({"content": text, "calls": []}, "stop")

    async def test_earlier_calls_are_told_in_words(self, api, engine) -> None:
        second = {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": ""}}
        calls = {"role": "assistant", "content": "Hm.", "tool_calls": [CALL, second]}
        results = [HISTORY[2], {"role": "tool", "tool_call_id": "call_2", "content": "43"}]
        await api.chat(messages=[HISTORY[0], calls, *results])
        assert prompt_of(engine) == (
            '[user]hi[assistant]Hm.\n[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
            "[user]f returned: 42\ng returned: 43"
        )

    async def test_a_role_for_tools_is_used_where_there_is_one(self, api, engine, state) -> None:
        state.chat_template = ChatTemplate(self.PLAIN.source + "{# 'tool' #}")
        await api.chat(messages=HISTORY)
        assert prompt_of(engine) == '[user]hi[assistant]{"name": "f", "arguments": {"a": 1}}[tool]42'

    async def test_the_plain_transcript_takes_tools(self, api, engine, state) -> None:
        state.chat_template = ChatTemplate.plain_transcript()
        await api.chat(tools=TOOLS, messages=HISTORY)
        assert prompt_of(engine).endswith(
            'User: hi\n\nAssistant: {"name": "f", "arguments": {"a": 1}}\n\nTool: 42\n\nAssistant:'
        )


async def test_tools_of_a_template_in_an_unknown_format_are_refused(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ tools }}")
    response = await api.chat(tools=TOOLS)
    assert "--tool-call-parser" in api.assert_error(response, 400, param="tools", code="unsupported_parameter")
    state.tool_call_parser = "hermes"
    assert (await both(api, engine, F))[1] == "tool_calls"
    state.tool_call_parser = "none"
    response = await api.chat(tools=TOOLS)
    assert "none" in api.assert_error(response, 400, param="tools", code="unsupported_parameter")


class TestARequiredCall:
    """A model that must call is held to it by a grammar."""

    @staticmethod
    def follows(engine, text: str) -> bool:
        matcher = LLMatcher(LLTokenizer("byte"), source_of(engine.requests[-1].sampling.grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()

    @pytest.mark.parametrize(
        ("fields", "ones", "others"),
        [
            ({"tool_choice": "required"}, [F_STRICT, f"{F_STRICT}\n{G_STRICT}"], ["", "no", f"{F_STRICT} "]),
            ({"tool_choice": "required", "parallel_tool_calls": False}, [F_STRICT], [f"{F_STRICT}\n{G_STRICT}"]),
            ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, [G_STRICT], [F_STRICT, ""]),
        ],
    )
    async def test_in_the_models_own_format(self, api, engine, fields, ones, others) -> None:
        for text in ones:
            message, reason = await both(api, engine, text, **fields)
            assert [name for name, _ in message["calls"]] == [name for name in "fg" if f'"{name}"' in text]
            assert (message["content"], reason) == (None, "tool_calls")
            assert self.follows(engine, text)
        for text in others:
            assert not self.follows(engine, text)

    @pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ tools }}", "{{ tools }}[TOOL_CALLS]"])
    async def test_as_json_for_other_models(self, api, engine, state, template) -> None:
        state.chat_template = ChatTemplate(template)
        state.client._become_ready(state.client.make_ready(max_model_len=4096, num_pages=400))
        calls = ['{"name": "f", "arguments": {}}', '{"name": "g", "arguments": {}}']
        message, reason = await both(api, engine, f"[{', '.join(calls)}]", tool_choice="required")
        assert (message["calls"], reason) == ([("f", "{}"), ("g", "{}")], "tool_calls")
        assert self.follows(engine, f"[{', '.join(calls)}]")
        assert not self.follows(engine, calls[0])
        named = {"type": "function", "function": {"name": "g"}}
        assert (await both(api, engine, calls[1], tool_choice=named))[0]["calls"] == [("g", "{}")]
        assert self.follows(engine, calls[1])
        assert not self.follows(engine, calls[0])

    async def test_tags_of_reasoning_are_not_looked_for(self, api, engine, state) -> None:
        state.chat_template = ChatTemplate(HERMES.source + "<think>\n")
        message, _ = await both(api, engine, F_STRICT, tool_choice="required")
        assert message["calls"] == [("f", "{}")]

    @pytest.mark.parametrize("place", [0, 1])
    async def test_e05_a_schema_that_does_not_compile_is_refused(self, api, engine, place) -> None:
        tools = [*TOOLS]
        tools[place] = {"type": "function", "function": {"name": "h", "parameters": {"type": "hiccup"}}}
        response = await api.chat(tools=tools, tool_choice="required")
        api.assert_error(response, 400, param="tools", code="invalid_grammar")
        assert engine.requests == []

    @pytest.mark.parametrize("text", ["[", '[{"name": "ge', "<tool_ca"])
    async def test_one_that_is_cut_before_its_name_leaves_no_content(self, api, engine, text) -> None:
        engine.answer(text, FinishReason.LENGTH)
        [choice] = (await api.chat(tools=TOOLS, tool_choice="required", logprobs=True)).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
        assert "tool_calls" not in choice["message"]
        assert choice["logprobs"]["content"] == []

    async def test_a_schema_that_is_too_deep_is_refused_by_name(self, api, engine) -> None:
        deep: dict[str, Any] = {}
        for _ in range(100):
            deep = {"properties": {"a": deep}}
        tools = [TOOLS[0], {"type": "function", "function": {"name": "h", "parameters": deep}}]
        named = {"type": "function", "function": {"name": "h"}}
        response = await api.chat(tools=tools, tool_choice=named)
        api.assert_error(response, 400, param="tools[1].function.parameters")
        assert engine.requests == []

    async def test_a_call_and_another_grammar_are_not_required_together(self, api, engine) -> None:
        response = await api.chat(tools=TOOLS, tool_choice="required", response_format={"type": "json_object"})
        assert "response_format" in api.assert_error(response, 400, param="tool_choice")
        assert engine.requests == []
