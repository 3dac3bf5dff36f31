"""What of a chat reaches its template, and what becomes of the template's text. Ids like E02 name cases of others."""

from __future__ import annotations

import pytest

from scheduler.request import FinishReason
from server.text.chat_template import ChatTemplate

TURNS = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TRIMMED = ChatTemplate(TURNS.source.replace("m.content", "m.content | trim"))
BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is "}]


@pytest.fixture(autouse=True)
def turns(state) -> None:
    state.chat_template = TURNS


async def prompt_of(api, engine, **fields) -> str:
    engine.answer("x", FinishReason.STOP)
    response = await api.chat(**fields)
    assert response.status_code == 200, response.text
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)


async def test_the_assistants_turn_is_opened_unless_it_is_not_wanted(api, engine) -> None:
    assert await prompt_of(api, engine) == "[user]hi[end][assistant]"
    assert await prompt_of(api, engine, add_generation_prompt=True) == "[user]hi[end][assistant]"
    assert await prompt_of(api, engine, add_generation_prompt=False) == "[user]hi[end]"


@pytest.mark.parametrize("fields", [{}, {"add_generation_prompt": False}])
async def test_an_answer_goes_on_with_the_final_message(api, engine, state, fields) -> None:
    fields = {"messages": BEGUN, "continue_final_message": True, **fields}
    assert await prompt_of(api, engine, **fields) == "[user]hi[end][assistant]The answer is "
    state.chat_template = TRIMMED  # as the template has it
    assert await prompt_of(api, engine, **fields) == "[user]hi[end][assistant]The answer is"


async def test_a_final_message_that_stands_elsewhere_too_is_cut_at_its_last_place(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ messages[-1].content }}|" + TURNS.source)
    fields = {"messages": BEGUN, "continue_final_message": True}
    assert (await prompt_of(api, engine, **fields)).endswith("[assistant]The answer is ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"messages": [*BEGUN[:1], {"role": "assistant", "content": ""}], "continue_final_message": True},
            "continue_final_message",
        ),
        ({"add_generation_prompt": "yes"}, "add_generation_prompt"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"eos_token": ""}}, "chat_template_kwargs.eos_token"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(api, engine, fields, param) -> None:
    api.assert_error(await api.chat(**fields), 400, param=param)
    assert engine.requests == []


async def test_a_template_without_the_final_message_cannot_go_on_with_it(api, state) -> None:
    state.chat_template = ChatTemplate("{{ messages[0].content }}")
    api.assert_error(await api.chat(messages=BEGUN, continue_final_message=True), 400, param="messages")


async def test_variables_reach_the_template(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ mood }}{{ depth.a[0] }}")
    assert await prompt_of(api, engine, chat_template_kwargs={"mood": "glad", "depth": {"a": [1]}}) == "glad1"


async def test_a_variable_that_the_template_does_not_read_is_refused(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{% set own = 1 %}{{ mood }}{{ own }}")
    for name in ("enable_thinking", "own"):
        response = await api.chat(chat_template_kwargs={"mood": "glad", name: False})
        api.assert_error(response, 400, param=f"chat_template_kwargs.{name}", code="unsupported_parameter")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "system", "content": "x"}], "System role not supported"),
        ([{"role": "system", "content": ""}], "System role not supported"),
        ([{"role": "user", "content": "x"}] * 2, "Conversation roles must alternate"),
    ],
)
async def test_e02_what_a_template_refuses_it_refuses_in_its_own_words(api, engine, state, messages, words) -> None:
    state.chat_template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}"
    )
    assert words in api.assert_error(await api.chat(messages=messages), 400, param="messages")
    assert engine.requests == []


async def test_e02_two_system_messages_reach_a_template_that_takes_them(api, engine) -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "system", "content": ""}, {"role": "user", "content": "b"}]
    assert await prompt_of(api, engine, messages=messages) == "[system]a[end][system][end][user]b[end][assistant]"


async def test_a_clients_template_is_run_only_where_the_server_trusts_it(api, engine, state) -> None:
    response = await api.chat(chat_template="{{ 'x' }}")
    assert "--trust-request-chat-template" in api.assert_error(
        response, 400, param="chat_template", code="unsupported_parameter"
    )
    state.trusts_request_templates = True
    assert await prompt_of(api, engine, chat_template="<{{ messages[0].content }}>") == "<hi>"
    assert "line 1" in api.assert_error(await api.chat(chat_template="{% if %}"), 400, param="chat_template")


async def test_a_clients_template_that_would_run_for_ever_is_refused(api, engine, state) -> None:
    state.trusts_request_templates = True
    bomb = "{% set m = range(999) | list %}{% for a in m %}{% for b in m %}{% for c in m %}" + "{% endfor %}" * 3
    assert "steps" in api.assert_error(await api.chat(chat_template=bomb), 400, param="messages")
    assert engine.requests == []


@pytest.mark.parametrize("key", ["300", "x", "-1", "1.5"])
async def test_a04_a_bias_on_what_is_no_token_is_refused(api, engine, key) -> None:
    api.assert_error(await api.chat(logit_bias={key: -100, "3": 5}), 400, param="logit_bias")
    assert engine.requests == []


@pytest.mark.parametrize("bias", [100.5, -101, "1", None])
async def test_a04_a_bias_that_is_too_large_or_no_number_is_refused(api, engine, bias) -> None:
    api.assert_error(await api.chat(logit_bias={"3": bias}), 400, param="logit_bias")
    assert engine.requests == []


@pytest.mark.parametrize("stops", [[""], ["a"] * 17, "a" * 1001])
async def test_d11_wrong_stops_are_refused_in_chats_too(api, engine, stops) -> None:
    api.assert_error(await api.chat(stop=stops), 400, param="stop")
    assert engine.requests == []


async def test_d04_d05_nothing_of_a_stop_string_of_several_tokens_is_sent(api, engine) -> None:
    engine.answer("ABCDEFGHIJK", FinishReason.LENGTH)
    chunks = api.events((await api.chat(stream=True, stop=["DEFGHIJ"])).text)[:-1]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == "ABC"
    assert (chunks[-1]["choices"][0]["finish_reason"], chunks[-1]["choices"][0]["stop_reason"]) == ("stop", "DEFGHIJ")


@pytest.mark.parametrize("options", [{}, {"include_usage": False, "continuous_usage_stats": True}])
async def test_d13_usage_that_was_not_asked_for_is_not_sent(api, options) -> None:
    chunks = api.events((await api.chat(stream=True, stream_options=options, max_tokens=2)).text)[:-1]
    assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks)
