"""Log probabilities in chats. Ids like B18 name cases known from other servers."""

from __future__ import annotations

import pytest

from scheduler.request import FinishReason
from server.text.chat_template import ChatTemplate

TOOLS = [{"type": "function", "function": {"name": "f"}}]


async def entries_of(api, engine, text: str, finish=FinishReason.STOP, **fields):
    """(content, entries), the same plain and streamed."""
    engine.answer(text, finish)
    [choice] = (await api.chat(logprobs=True, **fields)).json()["choices"]
    assert choice["logprobs"].keys() == {"content", "refusal"}
    plain = (choice["message"]["content"], choice["logprobs"]["content"])
    engine.answer(text, finish)
    choices = [
        choice
        for event in api.events((await api.chat(logprobs=True, stream=True, **fields)).text)[:-1]
        for choice in event["choices"]
    ]
    content = "".join(choice["delta"].get("content", "") for choice in choices)
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert plain == (content, entries)
    return plain


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
async def test_b18_joined_bytes_are_the_content_also_inside_an_emoji(api, engine, finish) -> None:
    content, entries = await entries_of(api, engine, "é 👋!", finish, top_logprobs=2)
    assert content == "é 👋!"
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == content.encode()
    for entry in entries:
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
    assert [entry["token"] for entry in entries[-1 - (finish is FinishReason.STOP) :]][:1] == ["!"]
    assert entries[3]["token"] == "bytes:\\xf0"
    assert entries[2] == {
        "token": " ",
        "logprob": -1.5,
        "bytes": [32],
        "top_logprobs": [
            {"token": "e", "logprob": -0.6931471824645996, "bytes": [101]},
            {"token": " ", "logprob": -1.5, "bytes": [32]},
        ],
    }


async def test_without_top_logprobs_there_are_none_at_the_top(api, engine) -> None:
    _, entries = await entries_of(api, engine, "at")
    assert [entry["top_logprobs"] for entry in entries[:2]] == [[], []]
    assert engine.requests[0].sampling.logprobs == 0


async def test_without_logprobs_none_are_asked_for(api, engine) -> None:
    engine.answer("at", FinishReason.STOP)
    assert (await api.chat(logprobs=False, top_logprobs=0)).json()["choices"][0]["logprobs"] is None
    assert engine.requests[0].sampling.logprobs is None


async def test_b18_tokens_of_reasoning_and_of_calls_are_not_among_those_of_the_content(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ tools }}<think><tool_call>")
    text = '<think>é!</think>\n\nWéll, a < b.\n<tool_call>{"name": "f"}</tool_call>\n'
    content, entries = await entries_of(api, engine, text, tools=TOOLS)
    assert content == "Wéll, a < b."
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == content.encode()


async def test_b18_a_stop_string_ends_the_entries_with_the_content(api, engine) -> None:
    content, entries = await entries_of(api, engine, "abcdef", stop="de")
    assert (content, "".join(entry["token"] for entry in entries)) == ("abc", "abc")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
    ],
)
async def test_a21_wrong_numbers_are_refused_before_a_stream_and_the_next_request_works(
    api, engine, fields, param, stream
) -> None:
    api.assert_error(await api.chat(**fields, stream=stream), 400, param=param)
    assert engine.requests == []
    assert (await api.chat(logprobs=True, top_logprobs=20, max_tokens=1)).status_code == 200
