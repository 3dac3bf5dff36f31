"""Several samples of one prompt: n and best_of. Ids like B03 name cases known from other servers."""

from __future__ import annotations

import asyncio
import time

import orjson
import pytest

from engine.client import EngineDied
from scheduler.request import FinishReason


def finishes(chunks) -> list[tuple[int, str]]:
    """(index, finish reason) of every choice that ends in these events."""
    return [(c["index"], c["finish_reason"]) for chunk in chunks[:-1] for c in chunk["choices"] if c["finish_reason"]]


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_n_samples_of_a_prompt_are_one_request_of_the_engine(api, engine) -> None:
    for text in ("one", "two", "six"):
        engine.answer(text)
    body = (await api.completion(n=3, seed=42, max_tokens=3)).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "one"), (1, "two"), (2, "six")]
    [request] = engine.requests
    assert len({request.request_id, *request.children}) == 3
    assert (request.sampling.seed, request.sampling.rank) == (42, False)
    assert engine.aborted == []
    assert await api.outcomes() == {"length": 3}


async def test_one_sample_has_no_children(api, engine) -> None:
    for fields in ({}, {"n": 1, "best_of": 1}, {"n": None, "best_of": None}):
        await api.completion(**fields)
    assert [request.children for request in engine.requests] == [[], [], []]


@pytest.mark.parametrize("stream", [False, True])
async def test_b03_choices_of_several_prompts_are_ordered_prompt_by_prompt(api, engine, stream) -> None:
    texts = ["a1", "a2", "b1", "b2"]
    for text in texts:
        engine.answer(text)
    response = await api.completion(prompt=["a", "bb"], n=2, stream=stream)
    if stream:
        chunks = api.events(response.text)
        assert [api.joined(chunks, index) for index in range(4)] == texts
        assert sorted(finishes(chunks)) == [(index, "length") for index in range(4)]
    else:
        assert [(c["index"], c["text"]) for c in response.json()["choices"]] == list(enumerate(texts))


async def test_b03_the_best_of_each_prompt_answer_it_best_first(api, engine) -> None:
    logprobs = [-3.0, -1.0, -4.0, -2.0, -1.0, -2.0, -3.0, -0.5]
    for index, logprob in enumerate(logprobs):
        engine.answer(f"s{index}", logprob=logprob)
    body = (await api.completion(prompt=["a", "b"], n=2, best_of=4)).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "s1"), (1, "s3"), (2, "s7"), (3, "s4")]
    assert [len(request.children) for request in engine.requests] == [3, 3]
    assert all(request.sampling.rank for request in engine.requests)
    assert body["usage"]["completion_tokens"] == 8 * 2  # the discarded ones were generated too


async def test_the_best_is_so_per_token_not_for_being_short(api, engine) -> None:
    engine.answer("x", logprob=-2.0)
    engine.answer("long text", logprob=-1.0)
    [choice] = (await api.completion(best_of=2)).json()["choices"]
    assert choice["text"] == "long text"


async def test_the_best_of_equals_is_the_first_drawn(api, engine) -> None:
    for text in ("ab", "cd", "ef"):
        engine.answer(text, logprob=-1.0)
    body = (await api.completion(n=2, best_of=3)).json()
    assert [choice["text"] for choice in body["choices"]] == ["ab", "cd"]


@pytest.mark.parametrize("stream", [False, True])
async def test_b05_a_prompt_counts_once_with_what_of_it_was_cached_and_every_sample_counts(api, engine, stream) -> None:
    gate = asyncio.Event()
    engine.answer("abc", cached=16).insert(-1, gate)  # the first prompt ends last
    engine.answer("de", cached=99)  # of a child: the prompt it shares is no second one
    for cached in (32, 48):
        engine.answer("fgh", cached=cached)
        engine.answer("ij", cached=99).insert(-1, gate.set)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = await api.completion(prompt=["x", "yy", "zzz"], n=2, **options)
    usage = api.events(response.text)[-2]["usage"] if stream else response.json()["usage"]
    assert usage == {
        "prompt_tokens": 1 + 2 + 3,
        "completion_tokens": 3 * (3 + 2),
        "total_tokens": 6 + 15,
        "prompt_tokens_details": {"cached_tokens": 16 + 32 + 48},
    }


async def test_b11_a_stream_of_n_marks_every_chunk_and_ends_every_choice_once(api, engine) -> None:
    engine.answer("aaa")
    engine.answer("bbbb", FinishReason.STOP)
    engine.answer("c")
    chunks = api.events((await api.completion(n=3, stream=True)).text)
    assert [api.joined(chunks, index) for index in range(3)] == ["aaa", "bbbb", "c"]
    assert sorted(finishes(chunks)) == [(0, "length"), (1, "stop"), (2, "length")]
    assert {choice["index"] for chunk in chunks[:-1] for choice in chunk["choices"]} == {0, 1, 2}


async def test_b11_a_chat_of_n_opens_and_ends_every_choice(api, engine) -> None:
    for text in ("Hi.", "Ho."):
        engine.answer(text, FinishReason.STOP)
    chunks = api.events((await api.chat(n=2, stream=True)).text)
    choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    for index, text in enumerate(("Hi.", "Ho.")):
        deltas = [choice["delta"] for choice in choices if choice["index"] == index]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta["content"] for delta in deltas[:-1]) == text
    assert sorted(finishes(chunks)) == [(0, "stop"), (1, "stop")]


async def test_b07_a_chat_has_n_messages(api, engine) -> None:
    for text in ("Hi.", "Ho."):
        engine.answer(text, FinishReason.STOP)
    body = (await api.chat(n=2)).json()
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [(0, "Hi."), (1, "Ho.")]
    assert body["usage"]["prompt_tokens"] == len("[user]hi[assistant]")


@pytest.mark.parametrize("stopped", [0, 1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_its_own_choice_only(api, engine, stopped, stream) -> None:
    for index in range(3):
        engine.answer("one two" if index == stopped else "one six ten")
    response = await api.completion(n=3, stop="two", stream=stream)
    if stream:
        chunks = api.events(response.text)
        texts, reasons = [api.joined(chunks, index) for index in range(3)], dict(finishes(chunks))
    else:
        choices = response.json()["choices"]
        texts, reasons = [c["text"] for c in choices], {c["index"]: c["finish_reason"] for c in choices}
    assert texts == ["one " if index == stopped else "one six ten" for index in range(3)]
    assert reasons == {index: "stop" if index == stopped else "length" for index in range(3)}


async def test_a_first_sample_that_stops_leaves_the_others_running_in_the_engine(api, engine) -> None:
    gate = asyncio.Event()
    engine.answer("stop more")
    engine.answer("other").insert(2, gate)
    answering = asyncio.create_task(api.completion(n=2, stop="stop"))
    await until(lambda: engine.aborted)
    [request] = engine.requests
    assert engine.aborted == [request.request_id]
    gate.set()
    assert [c["text"] for c in (await answering).json()["choices"]] == ["", "other"]
    assert engine.aborted == [request.request_id]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pauses", [0, 1, 2, 5, 20])  # at 0 nobody follows the children yet
async def test_h01_a_client_that_leaves_aborts_the_whole_family(api, engine, stream, pauses) -> None:
    engine.scripts += [[asyncio.Event()] for _ in range(6)]
    leave = asyncio.Event()
    body = orjson.dumps({"model": api.model, "prompt": ["a", "b"], "n": 3, "stream": stream})
    answering = asyncio.create_task(anext(api.raw("/v1/completions", body, leave)))
    await until(lambda: engine.num_in_flight >= 3)
    for _ in range(pauses):
        await asyncio.sleep(0)
    leave.set()
    assert (await answering)["status"] == 499
    families = [name for request in engine.requests for name in (request.request_id, *request.children)]
    assert sorted(engine.aborted) == sorted(families)
    assert engine.num_in_flight == 0


@pytest.mark.parametrize("failing", [0, 1])
async def test_a_sample_that_fails_fails_the_request_and_aborts_the_others(api, engine, failing) -> None:
    scripts = [[asyncio.Event()], [asyncio.Event()]]
    scripts[failing] = [EngineDied("the engine process died")]
    engine.scripts += scripts
    api.assert_error(await api.completion(n=2), 500, code="engine_died")
    [request] = engine.requests
    assert engine.aborted == [[*request.children, request.request_id][failing]]
    assert engine.num_in_flight == 0


async def test_an_error_of_the_engine_for_the_whole_family_is_told_once(api, engine) -> None:
    engine.scripts += [[engine.failure("never_fits", "it does not fit")] for _ in range(3)]
    assert api.assert_error(await api.completion(n=3), 400, code="kv_capacity_exceeded") == "it does not fit"
    assert engine.num_in_flight == 0


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize("value", [0, -1, 129, 100000, 2**31, 1.5, "1", True])
async def test_a20_an_n_out_of_range_is_refused(api, engine, path, value) -> None:
    api.assert_error(await getattr(api, path)(n=value), 400, param="n")
    assert engine.requests == []


@pytest.mark.alone
async def test_a20_a_huge_n_costs_nothing(api) -> None:
    await api.completion(n=100000)  # what is made once per process is made now
    began = time.perf_counter()
    response = await api.completion(n=100000)
    assert time.perf_counter() - began < 0.05
    assert "128" in api.assert_error(response, 400, param="n")


@pytest.mark.parametrize("path", ["completion", "chat"])
async def test_more_samples_than_run_at_once_are_refused_with_both_numbers(api, engine, path) -> None:
    message = api.assert_error(await getattr(api, path)(n=9), 400, param="n")
    assert "9 samples" in message
    assert "at most 8" in message
    assert engine.requests == []


async def test_more_candidates_than_run_at_once_are_refused_too(api, engine) -> None:
    assert "at most 8" in api.assert_error(await api.completion(best_of=9), 400, param="best_of")
    assert engine.requests == []


async def test_prompts_times_samples_are_bounded(api, engine) -> None:
    message = api.assert_error(await api.completion(prompt=["x"] * 129, n=8), 400, param="n")
    assert "1032 sequences" in message
    assert "at most 1024" in message
    assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_b20_fewer_candidates_than_choices_are_refused(api, engine, stream) -> None:
    message = api.assert_error(await api.completion(n=2, best_of=1, stream=stream), 400, param="best_of")
    assert message == "best_of: must be at least n, which is 2, not 1"
    assert engine.requests == []


async def test_b20_best_of_without_n_answers_with_one(api, engine) -> None:
    for text, logprob in (("no", -5.0), ("ok", -1.0), ("so", -2.0)):
        engine.answer(text, logprob=logprob)
    assert [c["text"] for c in (await api.completion(best_of=3)).json()["choices"]] == ["ok"]


async def test_b20_a_stream_cannot_choose_the_best(api, engine) -> None:
    api.assert_error(await api.completion(best_of=3, stream=True), 400, param="best_of")
    assert engine.requests == []
    assert (await api.completion(n=2, best_of=2, stream=True)).status_code == 200


@pytest.mark.parametrize(("n", "best_of"), [(1, 0), (1, 21), (1, "2"), (1, True), (21, 22)])
async def test_b20_a_best_of_out_of_range_is_refused(api, engine, n, best_of) -> None:
    engine.ready = engine.make_ready(max_num_seqs=200)
    api.assert_error(await api.completion(n=n, best_of=best_of), 400, param="best_of")
    assert engine.requests == []


@pytest.mark.parametrize(("n", "best_of"), [(1, 20), (21, 21), (128, None)])
async def test_n_and_best_of_up_to_their_limits_are_taken(api, engine, n, best_of) -> None:
    engine.ready = engine.make_ready(max_num_seqs=128)
    body = (await api.completion(n=n, best_of=best_of, max_tokens=1)).json()
    assert len(body["choices"]) == n
    assert body["usage"]["completion_tokens"] == max(n, best_of or n)


async def test_a_chat_has_no_best_of(api, engine) -> None:
    api.assert_error(await api.chat(best_of=2), 400, param="best_of", code="unsupported_parameter")
    assert engine.requests == []
