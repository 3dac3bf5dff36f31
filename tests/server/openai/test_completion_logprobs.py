"""Log probabilities and echoes of completions. Ids like B12 name cases known from other servers.

The scripted engine says the same of every position: "e", " ", "t", "a" and two bytes of a character are most likely.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from engine.messages import RequestDelta
from engine.sampling_params import TokenLogprobs
from scheduler.request import FinishReason
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer

E = -0.6931471824645996
UNLIKELY = -9.21034049987793


def streamed_choice(chunks: list, index: int = 0) -> tuple[str, dict]:
    """The text and log probabilities of a choice, joined over its chunks; each chunk's text is its tokens'."""
    text, joined = "", {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                text += choice["text"]
                for name, values in (choice["logprobs"] or {}).items():
                    joined[name] += values
                assert "".join(joined["tokens"]) == text
    return text, joined


async def ask(api, *, stream: bool, **fields) -> list[tuple[str, dict]]:
    """The text and log probabilities of each choice."""
    response = await api.completion(stream=stream, **fields)
    assert response.status_code == 200, response.text
    if stream:
        chunks = api.events(response.text)[:-1]
        count = 1 + max(choice["index"] for chunk in chunks for choice in chunk["choices"])
        return [streamed_choice(chunks, index) for index in range(count)]
    return [(choice["text"], choice["logprobs"]) for choice in response.json()["choices"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_have_the_form_the_api_promises(api, engine, stream) -> None:
    engine.answer("ex")
    [(text, logprobs)] = await ask(api, stream=stream, logprobs=2)
    assert text == "ex"
    assert logprobs == {
        "tokens": ["e", "x"],
        "token_logprobs": [E, UNLIKELY],
        "top_logprobs": [{"e": E, " ": -1.5}, {"x": UNLIKELY, "e": E, " ": -1.5}],
        "text_offset": [0, 1],
    }
    assert engine.requests[0].sampling.logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_0_tell_the_token_alone(api, engine, stream) -> None:
    engine.answer("ex")
    [(_, logprobs)] = await ask(api, stream=stream, logprobs=0)
    assert logprobs["top_logprobs"] == [{"e": E}, {"x": UNLIKELY}]


@pytest.mark.parametrize("fields", [{}, {"logprobs": None}])
async def test_without_logprobs_the_engine_is_asked_for_none(api, engine, fields) -> None:
    body = (await api.completion(echo=True, **fields)).json()
    assert body["choices"][0]["logprobs"] is None
    assert (engine.requests[0].sampling.logprobs, engine.requests[0].prompt_logprobs) == (None, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["\n1. Alice has 20", "héllo 👋"])
async def test_b12_b17_echoed_tokens_joined_are_the_text_and_offsets_their_lengths(api, engine, stream, prompt) -> None:
    engine.answer("0 👋é")
    [(text, logprobs)] = await ask(api, stream=stream, prompt=prompt, echo=True, logprobs=1, max_tokens=9)
    assert text == prompt + "0 👋é"
    assert "".join(logprobs["tokens"]) == text
    ends = [0]
    for token in logprobs["tokens"]:
        ends.append(ends[-1] + len(token))
    assert logprobs["text_offset"] == ends[:-1]
    positions = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    assert next(positions) == (prompt[0], None, None)
    for token, logprob, top in positions:
        assert top[token] == logprob


@pytest.mark.parametrize("stream", [False, True])
async def test_b13_a_prompt_of_7_tokens_and_one_more_have_8_entries(api, engine, stream) -> None:
    engine.answer("x")
    [(_, logprobs)] = await ask(api, stream=stream, prompt="a prome"[:7], echo=True, logprobs=1, max_tokens=1)
    assert [len(values) for values in logprobs.values()] == [8] * 4
    assert logprobs["token_logprobs"] == [None, -1.5, *[UNLIKELY] * 4, E, UNLIKELY]
    assert engine.requests[0].prompt_logprobs == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_b13_the_token_that_ends_an_answer_has_an_entry_without_text(api, engine, stream) -> None:
    engine.answer("", FinishReason.STOP)
    [(text, logprobs)] = await ask(api, stream=stream, echo=True, logprobs=1, max_tokens=1)
    assert text == "hi"
    assert logprobs["tokens"] == ["h", "i", ""]
    assert logprobs["token_logprobs"][-1] == logprobs["top_logprobs"][-1][""] == UNLIKELY


@pytest.mark.parametrize("stream", [False, True])
async def test_a16_an_echo_of_the_prompt_alone_has_its_logprobs_and_no_completion_tokens(api, engine, stream) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = await api.completion(prompt="tea", echo=True, logprobs=1, max_tokens=0, stream=stream, **options)
    if stream:
        *chunks, last, _ = api.events(response.text)
        (text, logprobs), usage = streamed_choice(chunks), last["usage"]
        finish_reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        body = response.json()
        [choice] = body["choices"]
        text, logprobs, usage = choice["text"], choice["logprobs"], body["usage"]
        finish_reason = choice["finish_reason"]
    assert (text, finish_reason) == ("tea", "length")
    assert logprobs["token_logprobs"] == [None, E, -3.125]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 0)
    assert engine.requests[0].sampling.max_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a17_an_echo_without_logprobs_begins_with_the_prompt(api, engine, stream) -> None:
    engine.answer(" there")
    response = await api.completion(echo=True, max_tokens=6, stream=stream)
    text = api.joined(api.events(response.text)) if stream else response.json()["choices"][0]["text"]
    assert text == "hi there"
    body = (await api.completion(echo=True, max_tokens=0)).json()
    assert (body["choices"][0]["text"], body["usage"]["completion_tokens"]) == ("hi", 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_b04_a_list_of_one_prompt_is_answered_like_the_prompt(api, engine, byte_tokenizer, stream) -> None:
    answers = []
    for prompt in ("tea", ["tea"], byte_tokenizer.encode("tea"), [byte_tokenizer.encode("tea")]):
        engine.answer("x")
        answers.append(await ask(api, stream=stream, prompt=prompt, echo=True, logprobs=1, max_tokens=1))
    assert answers[0] == answers[1] == answers[2] == answers[3]


async def test_b03_echoes_of_the_best_samples_of_two_prompts_are_in_order(api, engine) -> None:
    for text, logprob in (("b", -2.0), ("a", -1.0), ("c", -3.0), ("d", -4.0)) * 2:
        engine.answer(text, logprob=logprob)
    choices = await ask(api, stream=False, prompt=["x", "yz"], n=2, best_of=4, echo=True, logprobs=0, max_tokens=1)
    assert [text for text, _ in choices] == ["xa", "xb", "yza", "yzb"]
    assert [logprobs["tokens"] for _, logprobs in choices] == [["x", "a"], ["x", "b"], ["y", "z", "a"], ["y", "z", "b"]]


async def test_samples_wait_for_what_the_first_of_them_reads_of_the_prompt(api, engine) -> None:
    gate = asyncio.Event()
    engine.answer("1").insert(0, gate)
    engine.answer("2").append(gate.set)
    engine.scripts[-1].insert(0, gate.set)
    choices = await ask(api, stream=True, n=2, echo=True, logprobs=0, max_tokens=1)
    assert [text for text, _ in choices] == ["hi1", "hi2"]
    assert [logprobs["token_logprobs"] for _, logprobs in choices] == [[None, UNLIKELY, UNLIKELY]] * 2


async def test_an_engine_that_does_not_tell_all_of_a_prompt_is_an_error_not_half_an_answer(api, engine) -> None:
    engine.scripts.append(
        [RequestDelta(request_id="", token_ids=[1], logprobs=[engine.rate(1, 0)], finish_reason=FinishReason.LENGTH)]
    )
    original, engine.rate_prompt = engine.rate_prompt, lambda request: original(request)[:-1]
    api.assert_error(await api.completion(echo=True, logprobs=0), 500, code="internal_error")
    assert await api.outcomes() == {"error": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_end_where_a_stop_string_begins(api, engine, stream) -> None:
    engine.answer("one two three", per_delta=4)
    [(text, logprobs)] = await ask(api, stream=stream, stop=["two"], logprobs=0)
    assert text == "one "
    assert logprobs["tokens"] == list("one ")


async def test_likely_tokens_that_are_no_text_are_told_by_their_bytes(api, engine) -> None:
    engine.answer("x")
    [(_, logprobs)] = await ask(api, stream=False, logprobs=6)
    assert logprobs["top_logprobs"][0].keys() == {"x", "e", " ", "t", "a", "bytes:\\xf0", "bytes:\\x9f"}


async def test_likely_tokens_with_the_text_of_another_are_told_by_their_id(api, engine, state) -> None:
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*BYTE_LEVEL_ALPHABET, "<|end|>", "<x>", "<x>"],
            "tokenizer.ggml.token_type": [1] * 256 + [3, 1, 4],
            "tokenizer.ggml.merges": [],
        }
    )
    assert tokenizer.token_bytes(257) == tokenizer.token_bytes(258) == b"<x>"
    state.tokenizer = tokenizer
    one = TokenLogprobs(-1.0, 2, [258, 257], [-0.5, -1.0])
    engine.scripts.append(
        [RequestDelta(request_id="", token_ids=[257], logprobs=[one], finish_reason=FinishReason.LENGTH)]
    )
    [(_, logprobs)] = await ask(api, stream=False, logprobs=2)
    assert logprobs["top_logprobs"] == [{"<x>": -1.0, "token_id:258": -0.5}]


async def test_prompt_logprobs_are_told_by_id_with_ranks(api, engine, byte_tokenizer) -> None:
    [h, e, space] = byte_tokenizer.encode("he ")
    engine.answer("x")
    body = (await api.completion(prompt="he", prompt_logprobs=2, max_tokens=1)).json()
    [choice] = body["choices"]
    assert (choice["text"], choice["logprobs"]) == ("x", None)
    top = {
        str(e): {"logprob": E, "rank": 1, "decoded_token": "e"},
        str(space): {"logprob": -1.5, "rank": 2, "decoded_token": " "},
    }
    assert choice["prompt_logprobs"] == [None, top]
    body = (await api.completion(prompt="eh", prompt_logprobs=2, max_tokens=0)).json()
    unlikely = {str(h): {"logprob": UNLIKELY, "rank": 100, "decoded_token": "h"}}
    assert body["choices"][0]["prompt_logprobs"] == [None, unlikely | top]


@pytest.mark.parametrize(("logprobs", "prompt_logprobs", "asked"), [(1, 3, 3), (3, 0, 3), (None, 2, 2), (2, None, 2)])
async def test_an_echo_and_prompt_logprobs_share_what_the_engine_is_asked_for(
    api, engine, logprobs, prompt_logprobs, asked
) -> None:
    engine.answer("x")
    body = (
        await api.completion(prompt="xx", echo=True, logprobs=logprobs, prompt_logprobs=prompt_logprobs, max_tokens=1)
    ).json()
    assert engine.requests[0].prompt_logprobs == asked
    [choice] = body["choices"]
    if logprobs is not None:
        assert len(choice["logprobs"]["top_logprobs"][1]) == 1 + logprobs
    if prompt_logprobs is not None:
        assert len(choice["prompt_logprobs"][1]) == 1 + prompt_logprobs


async def test_an_echo_hides_the_bos_that_the_tokenizer_adds_and_shows_other_special_tokens(api, engine, state) -> None:
    tokenizer = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*BYTE_LEVEL_ALPHABET, "<|end|>", "<|begin|>", "<|turn|>"],
            "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": 257,
            "tokenizer.ggml.add_bos_token": True,
        }
    )
    state.tokenizer = tokenizer
    engine.answer("x")
    [(text, logprobs)] = await ask(api, stream=False, prompt="a<|turn|>b", echo=True, logprobs=0, max_tokens=1)
    assert engine.requests[0].prompt_token_ids[0] == 257
    assert text == "a<|turn|>bx"
    assert logprobs["tokens"] == ["", "a", "<|turn|>", "b", "x"]


async def test_prompt_logprobs_may_come_in_pieces_before_the_first_token(api, engine) -> None:
    first, second, third = [None, engine.rate(1, 0)], [engine.rate(2, 0)], [engine.rate(3, 0)]
    pieces = [RequestDelta(request_id="", token_ids=[], prompt_logprobs=piece) for piece in (first, second)]
    script = engine.answer("x")
    script[:] = [*pieces, msgspec.structs.replace(script[0], prompt_logprobs=third)]
    engine.rate_prompt = lambda request: []
    [(text, logprobs)] = await ask(api, stream=True, prompt="abcd", echo=True, logprobs=0, max_tokens=1)
    assert text == "abcdx"
    assert logprobs["token_logprobs"] == [None, *[UNLIKELY] * 4]
