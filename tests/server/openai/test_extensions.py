"""Request fields beyond the OpenAI API: context_overflow and include_ledger. For cache_salt see test_auth.py."""

from __future__ import annotations

import pytest

from engine.messages import Ledger, PreemptionNote
from scheduler.request import FinishReason

LEDGER = Ledger(
    queue_seconds=0.5,
    prefill_seconds=0.25,
    decode_seconds=None,
    peak_pages=7,
    page_seconds=1.5,
    cached_tokens=32,
    recomputed_tokens=4,
    rotations=1,
    draft_tokens=8,
    accepted_draft_tokens=5,
    preemptions=[
        PreemptionNote(
            requester="cmpl-other-0-0",
            seconds=1.5,
            kind="recompute",
            cause="decode",
            pages_freed=3,
            tokens_to_recompute=4,
        )
    ],
)
LEDGER_FIELDS = {
    "queue_seconds": 0.5,
    "prefill_seconds": 0.25,
    "decode_seconds": None,
    "peak_pages": 7,
    "page_seconds": 1.5,
    "cached_tokens": 32,
    "recomputed_tokens": 4,
    "rotations": 1,
    "draft_tokens": 8,
    "accepted_draft_tokens": 5,
    "preemptions": [
        {
            "requester": "cmpl-other-0-0",
            "seconds": 1.5,
            "kind": "recompute",
            "cause": "decode",
            "pages_freed": 3,
            "tokens_to_recompute": 4,
        }
    ],
}


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_a_request_that_rotates_may_generate_beyond_the_context(api, engine, path) -> None:
    engine.answer("ok", FinishReason.STOP)
    response = await getattr(api, path)(context_overflow="rotate", max_tokens=100_000)
    assert response.status_code == 200
    [request] = engine.requests
    assert request.rotates
    assert request.sampling.max_tokens == 100_000


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize("overflow", ["error", None])
async def test_a15_others_are_refused_there_and_do_not_rotate(api, engine, path, overflow) -> None:
    response = await getattr(api, path)(context_overflow=overflow, max_tokens=100_000)
    param = "messages" if path == "chat" else "prompt"
    api.assert_error(response, 400, param=param, code="context_length_exceeded")
    await getattr(api, path)(context_overflow=overflow, max_tokens=5)
    assert [request.rotates for request in engine.requests] == [False]


async def test_a14_a_prompt_beyond_the_context_is_refused_though_it_would_rotate(api, engine) -> None:
    response = await api.completion(prompt="p" * 512, context_overflow="rotate")
    assert "512" in api.assert_error(response, 400, param="prompt", code="context_length_exceeded")
    assert engine.requests == []


async def test_a18_without_max_tokens_a_completion_that_rotates_has_16_tokens_however_long_its_prompt(
    api, engine
) -> None:
    room = engine.max_new_tokens(2)
    body = (await api.completion(prompt="p" * (2 + room - 5), context_overflow="rotate")).json()
    assert body["usage"]["completion_tokens"] == 16


async def test_a18_without_max_tokens_a_chat_that_rotates_ends_where_the_context_does(api, engine) -> None:
    await api.chat(context_overflow="rotate")
    [request] = engine.requests
    assert request.sampling.max_tokens == engine.max_new_tokens(len(request.prompt_token_ids))


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize(
    ("field", "value"),
    [*(("context_overflow", value) for value in ("truncate", "", True, 1)), ("include_ledger", 1)],
)
async def test_any_other_value_is_refused(api, engine, path, field, value) -> None:
    api.assert_error(await getattr(api, path)(**{field: value}), 400, param=field)
    assert engine.requests == []


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_the_ledger_of_each_choice_comes_with_it(api, engine, path) -> None:
    for _ in range(2):
        engine.answer("abc", ledger=LEDGER)
    choices = (await getattr(api, path)(n=2, include_ledger=True)).json()["choices"]
    assert [choice["ledger"] for choice in choices] == [LEDGER_FIELDS] * 2


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_the_ledger_of_a_streamed_choice_comes_with_its_last_chunk(api, engine, path) -> None:
    for _ in range(2):
        engine.answer("abc", ledger=LEDGER)
    chunks = api.events((await getattr(api, path)(n=2, include_ledger=True, stream=True)).text)[:-1]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        if choice["finish_reason"] is None:
            assert "ledger" not in choice
        else:
            assert choice["ledger"] == LEDGER_FIELDS


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize("include", [False, None])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_does_not_ask_for_the_ledger_gets_none(api, engine, path, include, stream) -> None:
    engine.answer("abc", ledger=LEDGER)
    assert "ledger" not in (await getattr(api, path)(include_ledger=include, stream=stream)).text


async def test_a_choice_ended_by_a_stop_string_has_no_ledger_and_says_so(api, engine) -> None:
    engine.answer("one two three", ledger=LEDGER)
    [choice] = (await api.completion(stop="two", include_ledger=True)).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["ledger"] is None
