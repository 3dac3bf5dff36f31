"""POST /tokenize and /detokenize, GET /tokenizer_info. Ids like B02 name cases known from other servers."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.auth import ApiKeys

CONTEXT = 512


async def tokenize(api: Any, **fields: Any) -> httpx.Response:
    return await api.http.post("/tokenize", json=fields)


async def detokenize(api: Any, **fields: Any) -> httpx.Response:
    return await api.http.post("/detokenize", json=fields)


async def test_a_text_becomes_ids_with_their_number_and_the_limit(api) -> None:
    response = await tokenize(api, prompt="hé")
    assert response.json() == {"count": 3, "max_model_len": CONTEXT, "tokens": [71, 127, 102], "token_strs": None}


async def test_token_strs_are_the_tokens_as_the_vocabulary_writes_them(api) -> None:
    response = await tokenize(api, model=api.model, prompt="a é<|end|>", return_token_strs=True)
    assert response.json()["token_strs"] == ["a", "Ġ", "Ã", "©", "<|end|>"]


async def test_an_empty_text_has_no_tokens(api) -> None:
    assert (await tokenize(api, prompt="")).json()["tokens"] == []


async def test_b02_a_text_and_its_ids_are_the_same_completion(api, engine) -> None:
    ids = (await tokenize(api, prompt="Once upon a time")).json()["tokens"]
    await api.completion(prompt="Once upon a time")
    await api.completion(prompt=ids)
    by_text, by_ids = engine.requests
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == ids


async def test_b02_a_conversation_and_its_ids_are_the_same_prompt(api, engine) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    response = await tokenize(api, messages=messages)
    await api.chat(messages=messages)
    assert response.json()["tokens"] == engine.requests[0].prompt_token_ids
    text = (await detokenize(api, tokens=response.json()["tokens"])).json()["prompt"]
    assert text == "[system]Be brief.[user]hi[assistant]"


@pytest.mark.parametrize("text", ["", "plain", "naïve 漢字 👩‍👩‍👧 e\u0301", " <|end|> \n\t", "\x00\x7f"])
async def test_detokenize_gives_back_what_was_tokenized(api, text) -> None:
    ids = (await tokenize(api, prompt=text)).json()["tokens"]
    response = await detokenize(api, tokens=ids)
    assert response.json() == {"prompt": text}


async def test_special_tokens_can_be_left_out_of_the_text(api) -> None:
    assert (await detokenize(api, tokens=[71, 256, 72], skip_special_tokens=True)).json() == {"prompt": "hi"}


async def test_bytes_that_are_no_text_show_as_a_replacement_character(api) -> None:
    assert (await detokenize(api, tokens=[71, 127])).json() == {"prompt": "h\ufffd"}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, None, None),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, None, None),
        ({"prompt": "a", "add_generation_prompt": False}, None, None),
        ({"prompt": ["a"]}, "prompt", None),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens", None),
        ({"prompt": "a", "max_tokens": 3}, "max_tokens", "unknown_parameter"),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_parameter"),
    ],
)
async def test_a_wrong_field_of_tokenize_is_named(api, fields, param, code) -> None:
    api.assert_error(await tokenize(api, **fields), 400, param=param, code=code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "tokens", "missing_parameter"),
        ({"tokens": "a"}, "tokens", None),
        ({"tokens": [1, "a"]}, "tokens", None),
        ({"tokens": [True]}, "tokens", None),
        ({"tokens": [-1]}, "tokens", None),
        ({"tokens": [260]}, "tokens", None),
        ({"tokens": [1.0]}, "tokens", None),
        ({"tokens": [1] * 513}, "tokens", "context_length_exceeded"),
        ({"tokens": [1], "text": "a"}, "text", "unknown_parameter"),
    ],
)
async def test_a_wrong_field_of_detokenize_is_named(api, fields, param, code) -> None:
    api.assert_error(await detokenize(api, **fields), 400, param=param, code=code)


async def test_another_model_is_a_404(api) -> None:
    for response in (await tokenize(api, model="other", prompt="a"), await detokenize(api, model="other", tokens=[1])):
        api.assert_error(response, 404, param="model", code="model_not_found")


async def test_a_conversation_needs_a_template(api, state) -> None:
    state.chat_template = None
    response = await tokenize(api, messages=[{"role": "user", "content": "hi"}])
    api.assert_error(response, 400, code="chat_template_missing")


async def test_a_long_text_is_tokenized_outside_the_event_loop_and_a_short_one_in_it(api, state, monkeypatch) -> None:
    threads = []
    encode = state.tokenizer.encode

    def watched(*arguments: Any, **options: Any) -> list[int]:
        threads.append(threading.current_thread())
        return encode(*arguments, **options)

    monkeypatch.setattr(state.tokenizer, "encode", watched)
    assert (await tokenize(api, prompt="a" * 10_000)).json()["count"] == 10_000
    assert (await tokenize(api, prompt="a")).json()["count"] == 1
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


async def test_a_text_above_the_limit_of_bodies_is_refused(api) -> None:
    api.assert_error(await tokenize(api, prompt="a" * 20_000), 413, code="request_too_large")


async def test_tokenizer_info_says_what_the_vocabulary_is(api, state) -> None:
    assert (await api.http.get("/tokenizer_info")).json() == {
        "kind": "byte-level",
        "vocab_size": 257,
        "model_vocab_size": 260,
        "max_model_len": CONTEXT,
        "adds_bos": False,
        "bos_token_id": None,
        "eos_token_ids": [256],
        "bos_token": None,
        "eos_token": "<|end|>",
        "pad_token": None,
        "unk_token": None,
        "chat_template": state.chat_template.source,
    }


async def test_they_need_an_api_key_where_v1_does(api, state) -> None:
    state.api_keys = ApiKeys(["secret"])
    guarded = type(api)(create_app(state), state)
    responses = [
        await tokenize(guarded, prompt="a"),
        await detokenize(guarded, tokens=[1]),
        await guarded.http.get("/tokenizer_info"),
    ]
    for response in responses:
        guarded.assert_error(response, 401, code="invalid_api_key")
    for header in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
        guarded.http.headers = httpx.Headers(header)
        assert (await tokenize(guarded, prompt="a")).status_code == 200
    guarded.http.headers = httpx.Headers({"authorization": "Bearer wrong", "x-api-key": "secret"})
    guarded.assert_error(await tokenize(guarded, prompt="a"), 401, code="invalid_api_key")
    await guarded.http.aclose()
