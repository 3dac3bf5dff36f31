"""POST /v1/completions, plain and streamed. Ids like A01 name cases known from other servers."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import EngineDied
from engine.messages import RequestDelta
from scheduler.request import FinishReason


async def test_a_completion_has_the_fields_the_api_promises(api, engine) -> None:
    engine.answer(" there", cached=16)
    response = await api.completion(max_tokens=6, temperature=0)
    body = response.json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": api.model,
        "choices": [{"index": 0, "text": " there", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 6,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }


async def test_the_engine_gets_every_sampling_parameter_as_given(api, engine) -> None:
    await api.completion(
        max_tokens=3, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=-7, stop_token_ids=[5], ignore_eos=True
    )
    [request] = engine.requests
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (3, 0.5, 0.9, 40)
    assert (sampling.min_p, sampling.seed, sampling.stop_token_ids, sampling.ignore_eos) == (0.1, -7, [5], True)


@pytest.mark.parametrize("fields", [{}, {"temperature": None, "top_p": None, "top_k": None, "seed": None}])
async def test_absent_and_null_parameters_take_the_apis_defaults(api, engine, fields) -> None:
    await api.completion(**fields)
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.seed, sampling.stop_token_ids, sampling.ignore_eos) == (None, [], False)


async def test_top_k_minus_one_is_off(api, engine) -> None:
    await api.completion(top_k=-1)
    assert engine.requests[0].sampling.top_k == 0


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}])
async def test_a18_absent_and_null_max_tokens_mean_16(api, fields) -> None:
    body = (await api.completion(**fields)).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a18_the_default_of_16_shrinks_where_fewer_fit(api, engine) -> None:
    room = engine.max_new_tokens(2)
    prompt = "p" * (2 + room - 5)
    assert (await api.completion(prompt=prompt)).json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [[1], []]])
async def test_a01_a02_an_empty_prompt_is_refused(api, engine, prompt) -> None:
    api.assert_error(await api.completion(prompt=prompt), 400, param="prompt")
    assert engine.requests == []


@pytest.mark.parametrize(
    "prompt", [None, 5, True, {"text": "x"}, ["a", 1], [1, "a"], [[1], "a"], [1.0], [True], [None]]
)
async def test_a_prompt_of_any_other_form_is_refused(api, engine, prompt) -> None:
    api.assert_error(await api.completion(prompt=prompt), 400, param="prompt")
    assert engine.requests == []


async def test_b01_all_four_forms_of_a_prompt_work_and_ids_are_taken_verbatim(api, engine, byte_tokenizer) -> None:
    ids = byte_tokenizer.encode("hi")
    for prompt in ("hi", ["hi", "yo"], ids, [ids, ids]):
        assert (await api.completion(prompt=prompt)).status_code == 200
    sent = [request.prompt_token_ids for request in engine.requests]
    assert sent == [ids, ids, byte_tokenizer.encode("yo"), ids, ids, ids]


@pytest.mark.parametrize("prompt", [[260], [[1], [999999]], [-1]])
async def test_a_token_id_outside_the_vocabulary_is_refused(api, engine, prompt) -> None:
    api.assert_error(await api.completion(prompt=prompt), 400, param="prompt")
    assert engine.requests == []


async def test_a05_a_stop_token_outside_the_vocabulary_is_refused(api, engine) -> None:
    message = api.assert_error(await api.completion(stop_token_ids=[1260]), 400, param="stop_token_ids")
    assert "1260" in message
    assert "260" in message
    assert engine.requests == []


async def test_several_prompts_give_choices_in_their_order_whatever_finishes_first(api, engine) -> None:
    gate = asyncio.Event()
    engine.answer("first").insert(0, gate)
    engine.answer("two", FinishReason.STOP, cached=16).insert(-1, gate.set)
    body = (await api.completion(prompt=["hi", "you"], max_tokens=5)).json()
    assert [(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "first", "length"),
        (1, "two", "stop"),
    ]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 5 + 4  # "two" and EOS
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["p" * 600, "p" * 512])
async def test_a14_a_prompt_beyond_the_context_is_refused_with_both_numbers(api, engine, stream, prompt) -> None:
    response = await api.completion(prompt=prompt, stream=stream)
    message = api.assert_error(response, 400, param="prompt", code="context_length_exceeded")
    assert str(len(prompt)) in message
    assert "512" in message
    assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a15_prompt_and_max_tokens_beyond_the_context_are_refused_not_clamped(api, engine, stream) -> None:
    response = await api.completion(prompt="p" * 450, max_tokens=100, stream=stream)
    message = api.assert_error(response, 400, param="prompt", code="context_length_exceeded")
    assert "550" in message
    assert "512" in message
    assert engine.requests == []


async def test_what_could_never_fit_the_pool_is_refused_with_both_numbers(api, engine) -> None:
    message = api.assert_error(await api.completion(prompt="p" * 400), 400, code="kv_capacity_exceeded")
    assert "400" in message
    assert "20" in message
    assert engine.requests == []


async def test_a_stop_string_ends_the_answer_before_it_and_aborts_the_rest(api, engine) -> None:
    engine.answer("one two three")
    body = (await api.completion(stop=["two"], max_tokens=13)).json()
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one ", "stop", "two")
    assert body["usage"]["completion_tokens"] == len("one two")
    assert engine.aborted == [engine.requests[0].request_id]
    assert await api.outcomes() == {"stop": 1}


async def test_c12_the_stop_reason_is_null_for_eos_and_the_id_for_a_stop_token(api, engine) -> None:
    engine.answer("done", FinishReason.STOP)
    [choice] = (await api.completion()).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("done", "stop", None)
    [x] = engine.tokenizer.encode("x")
    ids = [*engine.tokenizer.encode("yes"), x]
    delta = RequestDelta(request_id="", token_ids=ids, finish_reason=FinishReason.STOP, stop_token_id=x)
    engine.scripts.append([delta])
    body = (await api.completion(stop_token_ids=[x])).json()
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("yes", "stop", x)
    assert body["usage"]["completion_tokens"] == 4


async def test_a_stream_says_what_the_plain_answer_says(api, engine) -> None:
    for stream in (False, True):
        engine.answer("héllo 👋 wörld")
        response = await api.completion(stream=stream, max_tokens=20)
        if not stream:
            plain = response.json()["choices"][0]["text"]
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = api.events(response.text)
    assert api.joined(chunks) == plain == "héllo 👋 wörld"
    assert all("\ufffd" not in choice["text"] for chunk in chunks[:-1] for choice in chunk["choices"])


async def test_a_streams_chunks_share_id_model_and_object_and_only_the_last_has_a_finish_reason(api, engine) -> None:
    engine.answer("abc")
    chunks = api.events((await api.completion(stream=True)).text)[:-1]
    assert [[choice["finish_reason"] for choice in chunk["choices"]] for chunk in chunks] == [[None]] * 3 + [["length"]]
    assert chunks[-1]["choices"][0]["text"] == ""
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in chunks} == {
        (chunks[0]["id"], "text_completion", chunks[0]["created"], api.model)
    }
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_of_several_prompts_marks_every_chunk_with_its_index(api, engine) -> None:
    engine.answer("aaa")
    engine.answer("bbbb", FinishReason.STOP)
    chunks = api.events((await api.completion(prompt=["x", "y"], stream=True)).text)
    assert api.joined(chunks, 0) == "aaa"
    assert api.joined(chunks, 1) == "bbbb"
    finished = [
        (c["index"], c["finish_reason"]) for chunk in chunks[:-1] for c in chunk["choices"] if c["finish_reason"]
    ]
    assert sorted(finished) == [(0, "length"), (1, "stop")]


async def test_d04_no_part_of_a_stop_string_is_streamed(api, engine) -> None:
    engine.answer("ABCDEFGHIJKL")
    chunks = api.events((await api.completion(stop=["DEFGHIJ"], stream=True)).text)
    assert api.joined(chunks) == "ABC"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


async def test_d09_a_held_back_half_match_is_flushed_once_at_the_end(api, engine) -> None:
    engine.answer("xyDEF")
    chunks = api.events((await api.completion(stop=["DEFG"], stream=True)).text)
    assert api.joined(chunks) == "xyDEF"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_d02_a_character_cut_by_max_tokens_shows_as_one_replacement_character(api, engine, stream) -> None:
    ids = engine.tokenizer.encode("a👋")[:-1]
    deltas = [RequestDelta(request_id="", token_ids=[i]) for i in ids[:-1]]
    engine.scripts.append([*deltas, RequestDelta(request_id="", token_ids=ids[-1:], finish_reason=FinishReason.LENGTH)])
    response = await api.completion(
        max_tokens=4, stream=stream, stream_options={"include_usage": True} if stream else None
    )
    if stream:
        *chunks, last, _ = api.events(response.text)
        text, usage = api.joined(chunks), last["usage"]
    else:
        text, usage = response.json()["choices"][0]["text"], response.json()["usage"]
    assert text == "a\ufffd"
    assert usage["completion_tokens"] == 4


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["s"] * 17, "s" * 1001, 5, [5], {"a": 1}])
async def test_d11_unusable_stop_strings_are_refused(api, engine, stop) -> None:
    api.assert_error(await api.completion(stop=stop), 400, param="stop")
    assert engine.requests == []


@pytest.mark.parametrize("stop", [None, [], "z", ["z"] * 16, "z" * 1000])
async def test_d11_stop_strings_up_to_the_limits_are_taken(api, stop) -> None:
    assert (await api.completion(stop=stop)).status_code == 200


async def test_d11_the_prompt_is_never_searched_for_stop_strings(api, engine) -> None:
    engine.answer("go on")
    assert (await api.completion(prompt="the end", stop="end")).json()["choices"][0]["text"] == "go on"


async def test_d12_usage_comes_once_in_a_last_chunk_without_choices(api, engine) -> None:
    engine.answer("abc", cached=16)
    *chunks, last, done = api.events((await api.completion(stream=True, stream_options={"include_usage": True})).text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert last["id"] == chunks[0]["id"]
    assert len(chunks) == 4
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("options", [{}, None, {"include_usage": False, "continuous_usage_stats": True}])
async def test_d13_without_include_usage_a_stream_has_no_usage(api, options) -> None:
    chunks = api.events((await api.completion(stream=True, stream_options=options)).text)[:-1]
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_d17_a_failure_within_a_stream_is_an_error_event_before_done(api, engine) -> None:
    engine.answer("abc", None).append(EngineDied("the engine process died"))
    response = await api.completion(stream=True)
    assert response.status_code == 200
    *chunks, error, done = api.events(response.text)
    assert api.joined(chunks) == "abc"
    assert error == {
        "error": {
            "message": "the engine process died",
            "type": "server_error",
            "param": None,
            "code": "engine_died",
        }
    }
    assert done == "[DONE]"
    assert await api.outcomes() == {"error": 1}


async def test_d17_a_bug_within_a_stream_says_no_more_than_that_it_happened(api, engine, caplog) -> None:
    engine.answer("abc", None).append(RuntimeError("secret detail"))
    *_, error, done = api.events((await api.completion(stream=True)).text)
    assert error["error"]["code"] == "internal_error"
    assert "secret" not in error["error"]["message"]
    assert done == "[DONE]"
    assert await api.outcomes() == {"error": 1}
    assert "secret detail" in caplog.text  # the log is where it belongs


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_text_is_an_http_error_streamed_or_not(api, engine, stream) -> None:
    engine.scripts.append([EngineDied("the engine process died")])
    api.assert_error(await api.completion(stream=stream), 500, code="engine_died")
    assert await api.outcomes() == {"error": 1}


async def test_a_request_that_fails_in_the_engine_is_a_500_with_its_reason(api, engine) -> None:
    engine.scripts.append([engine.failure("step_failed", "logits are not finite", started=True)])
    assert api.assert_error(await api.completion(), 500, code="step_failed") == "logits are not finite"
    assert await api.outcomes() == {"error": 1}


async def test_an_abort_nobody_here_asked_for_is_a_503(api, engine) -> None:
    engine.scripts.append([RequestDelta(request_id="", token_ids=[], finish_reason=FinishReason.ABORT)])
    api.assert_error(await api.completion(), 503, code="aborted")
    assert await api.outcomes() == {"abort": 1}


async def test_an_engine_that_forgets_a_request_is_an_error_not_an_empty_answer(api, engine) -> None:
    engine.answer("ab", None)
    api.assert_error(await api.completion(), 500, code="internal_error")
    assert await api.outcomes() == {"error": 1}


async def test_one_failing_prompt_fails_the_request_and_aborts_the_others(api, engine) -> None:
    engine.scripts.append([asyncio.Event()])
    engine.scripts.append([EngineDied("the engine process died")])
    api.assert_error(await api.completion(prompt=["a", "b"]), 500, code="engine_died")
    assert engine.aborted == [engine.requests[0].request_id]
    assert await api.outcomes() == {"abort": 1, "error": 1}
    assert engine.num_in_flight == 0


async def test_merged_deltas_stop_and_count_as_single_tokens_do(api, engine) -> None:
    for per_delta in (1, 5, 100):
        engine.answer("one two three", per_delta=per_delta)
        body = (await api.completion(stop="two")).json()
        assert body["choices"][0]["text"] == "one "
        assert body["usage"]["completion_tokens"] == len("one two")


async def test_a_long_prompt_is_tokenized_like_a_short_one(api, engine, state, monkeypatch) -> None:
    monkeypatch.setattr("server.openai.submission.INLINE_CHARACTERS", 100)
    text = "é" * 600  # beyond what is tokenized inline; then refused, for it is too long for the context
    message = api.assert_error(await api.completion(prompt=text), 400, param="prompt", code="context_length_exceeded")
    assert "1200 tokens" in message
