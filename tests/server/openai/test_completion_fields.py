"""What further fields ask of the engine, and change in the answer. Ids like A26 name cases known from other servers."""

from __future__ import annotations

import pytest

from engine.messages import RequestDelta
from scheduler.request import FinishReason
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_a26_penalties_biases_and_min_tokens_reach_the_engine_as_given(api, engine, path) -> None:
    response = await getattr(api, path)(
        presence_penalty=1, frequency_penalty=-0.5, repetition_penalty=1.25, logit_bias={"3": -100, "259": 2.5},
        min_tokens=2, max_tokens=3,
    )  # fmt: skip
    assert response.status_code == 200
    sampling = engine.requests[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -0.5, 1.25)
    assert (sampling.logit_bias, sampling.min_tokens) == ({3: -100.0, 259: 2.5}, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"presence_penalty": None, "frequency_penalty": 0, "repetition_penalty": None, "logit_bias": None},
        {"logit_bias": {}, "min_tokens": None},
    ],
)
async def test_absent_and_null_fields_change_no_logits(api, engine, fields) -> None:
    await api.completion(**fields)
    sampling = engine.requests[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (sampling.logit_bias, sampling.min_tokens, sampling.logprobs) == ({}, 0, None)


async def test_a_logit_bias_may_name_the_whole_limit_of_tokens_and_no_more(api, engine, state) -> None:
    engine.ready = engine.make_ready(vocab_size=2000)
    assert (await api.completion(logit_bias={str(i): 1 for i in range(1024)})).status_code == 200
    response = await api.completion(logit_bias={str(i): 1 for i in range(1025)})
    assert "1024" in api.assert_error(response, 400, param="logit_bias")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_included_stop_string_ends_the_text(api, engine, stream) -> None:
    engine.answer("one two three")
    response = await api.completion(stop=["two"], include_stop_str_in_output=True, stream=stream)
    if stream:
        chunks = api.events(response.text)
        text, last = api.joined(chunks), chunks[-2]["choices"][0]
    else:
        [last] = response.json()["choices"]
        text = last["text"]
    assert (text, last["finish_reason"], last["stop_reason"]) == ("one two", "stop", "two")


@pytest.mark.parametrize(("included", "text"), [(False, "yes"), (True, "yesx")])
async def test_an_included_stop_token_is_text_where_it_has_some(api, engine, included, text) -> None:
    [x] = engine.tokenizer.encode("x")
    ids = [*engine.tokenizer.encode("yes"), x]
    engine.scripts.append(
        [RequestDelta(request_id="", token_ids=ids, finish_reason=FinishReason.STOP, stop_token_id=x)]
    )
    body = (await api.completion(stop_token_ids=[x], include_stop_str_in_output=included)).json()
    assert body["choices"][0]["text"] == text
    assert body["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("skip", "text"), [(None, "ab"), (True, "ab"), (False, "a<|end|>b")])
async def test_special_tokens_show_only_if_they_are_not_skipped(api, engine, skip, text) -> None:
    ids = [*engine.tokenizer.encode("a"), 256, *engine.tokenizer.encode("b")]
    engine.scripts.append([RequestDelta(request_id="", token_ids=ids, finish_reason=FinishReason.LENGTH)])
    body = (await api.completion(skip_special_tokens=skip, ignore_eos=True)).json()
    assert body["choices"][0]["text"] == text


async def test_a_stop_string_counts_only_after_min_tokens(api, engine) -> None:
    engine.answer("end of the end")
    [choice] = (await api.completion(stop="end", min_tokens=4)).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("end of the ", "end")


async def test_c11_eos_as_the_last_allowed_token_is_a_stop(api, engine) -> None:
    engine.answer("ab", FinishReason.STOP)
    body = (await api.completion(max_tokens=3)).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3


async def test_d12_continuous_usage_counts_in_every_chunk_and_once_more_at_the_end(api, engine) -> None:
    engine.answer("abc", cached=16)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = api.events((await api.completion(stream=True, stream_options=options)).text)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]
    assert last["choices"] == []
    assert last["usage"] == chunks[-1]["usage"]
    assert chunks[0]["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 1,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


async def test_a_chunk_is_the_same_json_whether_its_frame_was_made_before_or_not(api, engine) -> None:
    text = 'a"\\\n\u2028é'
    engine.answer(text)
    engine.answer(text)
    plain = api.events((await api.completion(stream=True)).text)[:-1]
    options = {"include_usage": True, "continuous_usage_stats": True}
    counted = api.events((await api.completion(stream=True, stream_options=options)).text)[:-2]
    assert [chunk["choices"] for chunk in plain] == [chunk["choices"] for chunk in counted]
    assert api.joined(plain) == text


@pytest.fixture
def infill_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*BYTE_LEVEL_ALPHABET, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
            "tokenizer.ggml.token_type": [1] * 256 + [3] * 3,
            "tokenizer.ggml.merges": [],
        }
    )


async def test_a_suffix_makes_the_prompt_of_a_model_that_fills_in(api, engine, state, infill_tokenizer) -> None:
    state.tokenizer = infill_tokenizer
    engine.answer("mid")
    assert (await api.completion(prompt="pre", suffix="suf")).json()["choices"][0]["text"] == "mid"
    encode = infill_tokenizer.encode
    assert engine.requests[0].prompt_token_ids == [256, *encode("pre"), 257, *encode("suf"), 258]


@pytest.mark.parametrize("fields", [{"prompt": [5]}, {"prompt": ["a", "b"], "echo": True}])
async def test_a_suffix_goes_with_text_alone(api, engine, state, infill_tokenizer, fields) -> None:
    state.tokenizer = infill_tokenizer
    api.assert_error(await api.completion(suffix="suf", **fields), 400, param="suffix")
    assert engine.requests == []


@pytest.mark.parametrize("suffix", [None, ""])
async def test_an_empty_suffix_asks_for_nothing(api, engine, suffix) -> None:
    assert (await api.completion(suffix=suffix)).status_code == 200


async def test_b02_token_ids_are_answered_like_the_text_they_were_made_of(api, engine, byte_tokenizer) -> None:
    answers = []
    for prompt in ("héllo", byte_tokenizer.encode("héllo")):
        engine.answer("x")
        body = (await api.completion(prompt=prompt, echo=True)).json()
        answers.append((body["choices"], body["usage"]))
    assert answers[0] == answers[1]
    assert engine.requests[0].prompt_token_ids == engine.requests[1].prompt_token_ids


async def test_b09_samples_of_a_request_with_a_priority_are_served(api, engine, state) -> None:
    state.scheduling_policy = "priority"
    engine.answer("a")
    engine.answer("b")
    body = (await api.completion(n=2, priority=1)).json()
    assert [choice["text"] for choice in body["choices"]] == ["a", "b"]
    assert engine.requests[0].priority == 1


async def test_b06_one_seed_is_given_for_all_samples_of_a_prompt(api, engine) -> None:
    engine.answer("a")
    engine.answer("b")
    engine.answer("c")
    body = (await api.completion(n=3, seed=42, temperature=1)).json()
    assert [choice["text"] for choice in body["choices"]] == ["a", "b", "c"]
    assert [(request.sampling.seed, len(request.children)) for request in engine.requests] == [(42, 2)]
