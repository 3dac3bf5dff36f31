"""POST /v1/chat/completions, plain and streamed. Ids like E01 name cases known from other servers."""

from __future__ import annotations

import pytest

from scheduler.request import FinishReason
from server.text.chat_template import ChatTemplate


async def test_a_chat_completion_has_the_fields_the_api_promises(api, engine) -> None:
    engine.answer("Hello.", FinishReason.STOP)
    body = (await api.chat(temperature=0)).json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": api.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len("[user]hi[assistant]"),
            "completion_tokens": 7,
            "total_tokens": len("[user]hi[assistant]") + 7,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_the_template_makes_the_prompt(api, engine, byte_tokenizer) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "3+3?"},
    ]
    await api.chat(messages=messages)
    prompt = byte_tokenizer.decode(engine.requests[0].prompt_token_ids)
    assert prompt == "[system]Be brief.[user]2+2?[assistant]4[user]3+3?[assistant]"


async def test_an_assistant_message_of_the_sdk_can_be_sent_back_as_it_came(api, engine) -> None:
    engine.answer("4")
    message = (await api.chat()).json()["choices"][0]["message"]
    message |= {"tool_calls": None, "function_call": None, "audio": None, "annotations": []}
    user = {"role": "user", "content": "and?"}
    assert (await api.chat(messages=[user, message, user])).status_code == 200


async def test_the_developer_role_is_the_system_role_where_a_template_does_not_know_it(api, engine, state) -> None:
    messages = [{"role": "developer", "content": "x"}]
    await api.chat(messages=messages)
    state.chat_template = ChatTemplate("{# developer #}{{ messages[0].role }}")
    await api.chat(messages=messages)
    prompts = [engine.tokenizer.decode(request.prompt_token_ids) for request in engine.requests]
    assert prompts == ["[system]x[assistant]", "developer"]


async def test_e01_without_a_template_chat_says_how_to_set_one_and_completions_work(api, engine, state) -> None:
    state.chat_template = None
    message = api.assert_error(await api.chat(), 400, code="chat_template_missing")
    assert "--chat-template" in message
    assert engine.requests == []
    assert (await api.completion()).status_code == 200


async def test_e02_what_a_template_refuses_is_a_400_with_its_own_words(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    assert "roles must alternate" in api.assert_error(await api.chat(), 400, param="messages")
    assert engine.requests == []


async def test_e03_text_parts_are_joined(api, engine, byte_tokenizer) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " the best book"}]
    await api.chat(messages=[{"role": "user", "content": parts}])
    assert "[user]What is the best book[" in byte_tokenizer.decode(engine.requests[0].prompt_token_ids)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "sound"},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"type": "text", "text": "a", "more": 1},
        {"text": "a"},
        {"type": 5},
        "a",
        None,
    ],
)
async def test_e03_any_other_part_is_refused(api, engine, part) -> None:
    response = await api.chat(messages=[{"role": "user", "content": [part]}])
    api.assert_error(response, 400, param="messages[0].content")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ({"role": "user"}, "messages", None),
        (5, "messages", None),
        ([], "messages", None),
        (None, "messages", None),
        (["hi"], "messages[0]", None),
        ([{"role": "user"}], "messages[0].content", "missing_parameter"),
        ([{"content": "x"}], "messages[0].role", "missing_parameter"),
        ([{"role": "user", "content": None}], "messages[0].content", None),
        ([{"role": "user", "content": 5}], "messages[0].content", None),
        ([{"role": "oracle", "content": "x"}], "messages[0].role", None),
        ([{"role": "user", "content": "x", "mood": "glad"}], "messages[0].mood", "unknown_parameter"),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": 7}],
            "messages[1].tool_calls",
            None,
        ),
    ],
)
async def test_a08_a13_wrong_messages_are_refused_by_name(api, engine, messages, param, code) -> None:
    api.assert_error(await api.chat(messages=messages), 400, param=param, code=code)
    assert engine.requests == []


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
    ],
)
async def test_max_completion_tokens_wins_over_max_tokens(api, engine, fields, limit) -> None:
    await api.chat(**fields)
    assert engine.requests[0].sampling.max_tokens == limit


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None, "max_completion_tokens": None}])
async def test_a18_without_a_limit_a_chat_may_use_all_that_fits(api, engine, fields) -> None:
    engine.answer("ok", FinishReason.STOP)
    await api.chat(**fields)
    [request] = engine.requests
    assert request.sampling.max_tokens == engine.max_new_tokens(len(request.prompt_token_ids))


async def test_a14_a_conversation_beyond_the_context_is_refused(api, engine) -> None:
    response = await api.chat(messages=[{"role": "user", "content": "x" * 600}])
    message = api.assert_error(response, 400, param="messages", code="context_length_exceeded")
    assert str(len("[user][assistant]") + 600) in message
    assert "512" in message


async def test_d10_the_templates_own_stop_strings_end_a_turn_unseen(api, engine) -> None:
    engine.answer("Hi.[user]And")
    choice = (await api.chat(stop="zzz")).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hi.", "stop")


async def test_d14_d15_a_stream_begins_with_the_role_and_ends_with_an_empty_delta(api, engine) -> None:
    engine.answer("abcde")
    chunks = api.events((await api.chat(stream=True, max_tokens=5)).text)[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert deltas[1:-1] == [{"content": letter} for letter in "abcde"]
    assert deltas[-1] == {}
    finish_reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert finish_reasons == [None] * 6 + ["length"]
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", api.model)
    }


async def test_d12_usage_of_a_chat_stream_comes_once_at_the_end(api, engine) -> None:
    engine.answer("abc")
    *chunks, last, done = api.events((await api.chat(stream=True, stream_options={"include_usage": True})).text)
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_d16_one_token_is_length_and_plain_answers_are_json(api, engine, stream) -> None:
    response = await api.chat(max_tokens=1, stream=stream)
    if stream:
        chunks = api.events(response.text)[:-1]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    else:
        assert response.headers["content-type"] == "application/json"
        assert response.json()["choices"][0]["finish_reason"] == "length"
