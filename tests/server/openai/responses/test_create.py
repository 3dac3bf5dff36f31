"""POST /v1/responses: what the model reads, and what the answer looks like, plain and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from engine.client import EngineDied
from scheduler.request import FinishReason
from server.app import create_app
from server.auth import ApiKeys
from server.text.chat_template import ChatTemplate


def prompt(engine: Any, number: int = -1) -> str:
    """What the model read in its request of this number."""
    return engine.tokenizer.decode(engine.requests[number].prompt_token_ids)


def kinds(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_text_is_answered_with_a_message(responses, engine) -> None:
    engine.answer("Hello.", FinishReason.STOP, cached=2)
    made = await responses.made()
    [item] = made["output"]
    assert made["id"] == engine.requests[0].request_id.removesuffix("-0-0")
    assert item == {
        "id": item["id"],
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}],
    }
    assert made["usage"] == {
        "input_tokens": 19,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 26,
    }
    fixed = ("object", "status", "error", "incomplete_details", "model", "store", "background", "metadata", "tools")
    assert [made[name] for name in fixed] == [
        "response", "completed", None, None, responses.model, True, False, {}, [],
    ]  # fmt: skip
    assert made["created_at"] <= made["completed_at"]


async def test_what_was_asked_for_is_shown_again(responses) -> None:
    asked = {
        "instructions": "Be brief.",
        "max_output_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "store": False,
    }
    made = await responses.made(**asked)
    assert {name: made[name] for name in asked} == asked
    assert (made["text"], made["tool_choice"], made["truncation"]) == ({"format": {"type": "text"}}, "auto", "disabled")


async def test_sampling_reaches_the_engine(responses, engine) -> None:
    await responses.made(max_output_tokens=5, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, cache_salt="s")
    sampling = engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 0.5, 0.9)
    assert (sampling.top_k, sampling.min_p, sampling.seed, engine.requests[0].cache_salt) == (7, 0.1, 3, "s")


async def test_an_answer_that_was_cut_is_incomplete(responses, engine) -> None:
    engine.answer("Hel", FinishReason.LENGTH)
    made = await responses.made(max_output_tokens=3)
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert made["output"][0]["status"] == "incomplete"
    assert made["completed_at"] is None


async def test_an_empty_answer_is_an_empty_message(responses, engine) -> None:
    engine.answer("", FinishReason.STOP)
    engine.answer("", FinishReason.STOP)
    assert [item["content"][0]["text"] for item in (await responses.made())["output"]] == [""]
    ended = (await responses.events())[-1]
    assert [item["content"][0]["text"] for item in ended["response"]["output"]] == [""]


async def test_instructions_and_items_become_the_conversation(responses, engine) -> None:
    await responses.made(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "No lists."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
            },
            {"role": "user", "content": "c"},
        ],
    )
    assert prompt(engine) == "[system]Be brief.[system]No lists.[user]a[assistant]b[user]c[assistant]"


async def test_a_stream_tells_the_whole_story_in_order(responses, engine) -> None:
    engine.answer("héy", FinishReason.STOP)
    events = await responses.events(max_output_tokens=9)
    assert kinds(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    created, ended = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == "héy"
    added, part, *_ = events[2:]
    item = ended["output"][0]
    assert added["item"] == item | {"status": "in_progress", "content": []}
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert events[-2] == {
        "type": "response.output_item.done",
        "output_index": 0,
        "item": item,
        "sequence_number": len(events) - 2,
    }
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert (ended["status"], ended["id"], ended["usage"]["output_tokens"]) == ("completed", created["id"], 5)


async def test_a_stream_and_a_plain_answer_show_the_same_response(responses, engine) -> None:
    engine.answer("Hello", FinishReason.LENGTH)
    engine.answer("Hello", FinishReason.LENGTH)
    plain = await responses.made(max_output_tokens=5)
    events = await responses.events(max_output_tokens=5)
    assert events[-1]["type"] == "response.incomplete"
    streamed = events[-1]["response"]
    own = ("id", "created_at")
    for response in (plain, streamed):
        response["output"][0].pop("id")
    assert {k: v for k, v in plain.items() if k not in own} == {k: v for k, v in streamed.items() if k not in own}


async def test_the_place_in_the_queue_comes_before_all_events(responses, engine, state, read_stream) -> None:
    state.stream_queue_position = True
    engine.answer("a", FinishReason.STOP)[:0] = [engine.queued(2), engine.queued(1)]
    text = (await responses.create(stream=True)).text
    assert text.startswith(": queued position=2\n\n: queued position=1\n\nevent: response.created\n")
    assert read_stream(text)[-1]["type"] == "response.completed"


async def test_d17_a_failure_within_a_stream_ends_it_as_failed(responses, engine) -> None:
    engine.answer("abc", None).append(EngineDied("the engine process died"))
    events = await responses.events()
    failed = events[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the engine process died"}
    assert failed["response"]["output"][0]["content"][0]["text"] == "abc"
    assert (await responses.http.get(f"/v1/responses/{failed['response']['id']}")).status_code == 404


async def test_a_failure_before_the_first_event_is_an_ordinary_error(api, responses, engine) -> None:
    engine.scripts += [[engine.failure("queue_full", retry_after=3.0)]] * 2
    for stream in (False, True):
        api.assert_error(await responses.create(stream=stream), 429, code="queue_full")


async def test_when_the_client_leaves_the_answer_ends(api, engine) -> None:
    for stream in (False, True):
        leave, never = asyncio.Event(), asyncio.Event()
        engine.answer("a", None).extend([leave.set, never])
        body = orjson.dumps({"model": api.model, "input": "hi", "stream": stream})
        async for _ in api.raw("/v1/responses", body, leave):
            pass
    assert len(engine.aborted) == 2
    assert engine.num_in_flight == 0


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ""}, "input", None),
        ({"input": []}, "input", None),
        ({"input": 5}, "input", None),
        ({"input": ["hi"]}, "input", None),
        ({"input": [{"type": "image_generation_call", "id": "x"}]}, "input[0].type", None),
        ({"input": [{"type": 5}]}, "input[0].type", None),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content", None),
        ({"input": [{"role": "user", "content": "a"}, {"role": "tool", "content": "a"}]}, "input[1].role", None),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_parameter"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments",
         "missing_parameter"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output", None),
        ({"input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}]},
         "input[0].encrypted_content", "unsupported_parameter"),
        ({"input": [{"type": "item_reference", "id": "msg_nope"}]}, "input[0].id", "item_not_found"),
        ({"previous_response_id": "resp_nope"}, "previous_response_id", "previous_response_not_found"),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"temperature": 3}, "temperature", None),
        ({"temperature": "1"}, "temperature", None),
        ({"store": "yes"}, "store", None),
        ({"metadata": {"a": 1}}, "metadata.a", None),
        ({"metadata": {"a": "b" * 513}}, "metadata", None),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", None),
        ({"stream_options": {"include_obfuscation": False}, "stream": False}, "stream_options", None),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]", None),
        ({"top_logprobs": 3}, "top_logprobs", None),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs", None),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", None),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_parameter"),
        ({"tool_choice": "any"}, "tool_choice", None),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice", None),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", None),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "unsupported_parameter"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unknown_parameter"),
        ({"n": 2}, "n", "unknown_parameter"),
    ],
)  # fmt: skip
async def test_a_wrong_field_is_named_before_the_engine_hears_of_it(
    api, responses, engine, fields, param, code
) -> None:
    api.assert_error(await responses.create(**fields), 400, param=param, code=code)
    assert engine.requests == []


async def test_a14_what_is_too_long_is_told_with_the_clients_own_words(api, responses) -> None:
    message = api.assert_error(
        await responses.create(input="a" * 600), 400, param="input", code="context_length_exceeded"
    )
    assert "512" in message
    many = [{"role": "user", "content": "a"}] * 513
    api.assert_error(await responses.create(input=many), 400, param="input", code="context_length_exceeded")


async def test_errors_of_the_chat_name_the_field_of_the_response(api, responses, state) -> None:
    state.chat_template = ChatTemplate("{{ raise_exception('No.') }}")
    assert api.assert_error(await responses.create(), 400, param="input") == "input: No."


async def test_another_model_is_a_404(api, responses) -> None:
    api.assert_error(await responses.create(model="other"), 404, param="model", code="model_not_found")


async def test_a_response_goes_on_from_another(responses, engine) -> None:
    engine.answer("b", FinishReason.STOP)
    first = await responses.made(input="a", instructions="Be brief.")
    engine.answer("d", FinishReason.STOP)
    second = (await responses.events(input="c", previous_response_id=first["id"]))[-1]["response"]
    assert prompt(engine) == "[user]a[assistant]b[user]c[assistant]"
    assert second["previous_response_id"] == first["id"]
    await responses.http.delete(f"/v1/responses/{first['id']}")
    await responses.made(input="e", previous_response_id=second["id"])
    assert prompt(engine) == "[user]a[assistant]b[user]c[assistant]d[user]e[assistant]"


async def test_items_that_were_shown_can_be_sent_back_or_referred_to(responses, engine) -> None:
    engine.answer("b", FinishReason.STOP)
    [item] = (await responses.made(input="a"))["output"]
    for sent in (item, {"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        await responses.made(input=[{"role": "user", "content": "a"}, sent, {"role": "user", "content": "c"}])
        assert prompt(engine) == "[user]a[assistant]b[user]c[assistant]"


async def test_what_is_not_to_be_stored_cannot_be_gone_on_from(api, responses) -> None:
    first = await responses.made(store=False)
    response = await responses.create(previous_response_id=first["id"])
    api.assert_error(response, 400, param="previous_response_id", code="previous_response_not_found")


async def test_no_tenant_sees_what_another_stored(api, state, responses) -> None:
    state.api_keys = ApiKeys(["one", "two"])
    guarded = type(api)(create_app(state), state)
    guarded.http.headers["authorization"] = "Bearer one"
    own = type(responses)(guarded.http, api.model)
    made = await own.made()
    path = f"/v1/responses/{made['id']}"
    reference = [{"type": "item_reference", "id": made["output"][0]["id"]}]
    guarded.http.headers["authorization"] = "Bearer two"
    for response in (
        await guarded.http.get(path),
        await guarded.http.delete(path),
        await guarded.http.post(path + "/cancel"),
        await guarded.http.get(path + "/input_items"),
    ):
        api.assert_error(response, 404, code="response_not_found")
    api.assert_error(
        await own.create(previous_response_id=made["id"]),
        400, param="previous_response_id", code="previous_response_not_found",
    )  # fmt: skip
    api.assert_error(await own.create(input=reference), 400, param="input[0].id", code="item_not_found")
    guarded.http.headers["authorization"] = "Bearer one"
    assert (await guarded.http.get(path)).json() == made
    await guarded.http.aclose()
