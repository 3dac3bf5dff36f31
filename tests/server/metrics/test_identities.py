"""The API's side of the identities: whatever requests come and however they end, every scrape adds up."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from engine.client import EngineDied
from scheduler.request import FinishReason
from tests.metric_identities import Scrape, assert_identities, assert_nothing_went_back

NUM_REQUESTS = 24
KINDS = ("plain", "streamed", "stopped", "left", "refused", "full", "late", "died", "bug", "samples", "embedded", "bad")


class Mix:
    """Requests of every kind, whose engine does what a script says, and a scrape after each step that it takes."""

    def __init__(self, api, engine, rng: random.Random) -> None:
        self._api, self._engine, self._rng = api, engine, rng
        self.scrapes: list[Scrape] = []

    async def scrape(self) -> Scrape:
        scrape = Scrape((await self._api.http.get("/metrics")).text)
        assert_identities(scrape)
        if self.scrapes:
            assert_nothing_went_back(self.scrapes[-1], scrape)
        self.scrapes.append(scrape)
        return scrape

    async def ask(self, kind: str) -> None:
        api, engine = self._api, self._engine
        text = "abcdefgh"[: self._rng.randrange(1, 9)]
        ledger = engine.make_ledger()
        if kind == "plain":
            engine.answer(text, self._rng.choice([FinishReason.STOP, FinishReason.LENGTH]), ledger=ledger)
            assert (await api.completion()).status_code == 200
        elif kind == "streamed":
            engine.answer(text, ledger=ledger, per_delta=2)
            assert (await api.chat(stream=True)).status_code == 200
        elif kind == "stopped":
            engine.answer("ab-stop-cd", ledger=ledger)
            assert (await api.completion(stop=["stop"])).status_code == 200
        elif kind == "left":
            await self._leave(ledger)
        elif kind in ("refused", "full", "late"):
            code = {"refused": "step_failed", "full": "queue_full", "late": "queue_timeout"}[kind]
            engine.scripts.append([engine.failure(code, retry_after=1.0)])
            assert (await api.completion()).status_code >= 400
        elif kind in ("died", "bug"):
            error = EngineDied("the engine process died") if kind == "died" else RuntimeError("a bug")
            engine.answer(text, None).append(error)
            assert (await api.completion()).status_code == 500
        elif kind == "samples":
            number = self._rng.randrange(2, 5)
            for _ in range(number):
                engine.answer(text, ledger=ledger)
            assert (await api.completion(n=number)).status_code == 200
        elif kind == "embedded":
            body = {"model": api.model, "input": ["one", "two"]}
            assert (await api.http.post("/v1/embeddings", json=body)).status_code == 500  # it is told no vector
        else:
            assert (await api.completion(temperature=-1)).status_code == 400

    async def _leave(self, ledger) -> None:
        leave = asyncio.Event()
        self._engine.answer("abc", ledger=ledger).insert(1, asyncio.Event())  # it never ends by itself
        body = b'{"model": "org/tiny", "prompt": "hi", "stream": true}'
        async with contextlib.aclosing(self._api.raw("/v1/completions", body, leave)) as messages:
            async for message in messages:
                if message["type"] == "http.response.body":
                    leave.set()


@pytest.mark.parametrize("seed", range(3))
async def test_they_hold_after_every_step_of_any_mix(api, engine, seed) -> None:
    rng = random.Random(seed)
    mix = Mix(api, engine, rng)
    kinds = [*KINDS, *rng.choices(KINDS, k=NUM_REQUESTS - len(KINDS))]
    rng.shuffle(kinds)
    for kind in kinds:
        asking = asyncio.create_task(mix.ask(kind))
        while not asking.done():
            await mix.scrape()
            await asyncio.sleep(0)
        await asking
    last = await mix.scrape()
    counts = {kind: kinds.count(kind) for kind in KINDS}
    assert last.total("octavo_requests_in_flight") == 0
    assert last.total("octavo_requests_total", outcome="abort") == counts["left"]
    errors = sum(counts[kind] for kind in ("refused", "late", "died", "bug"))
    assert last.total("octavo_requests_total", outcome="error") >= errors
    assert last.total("octavo_refusals_total", reason="queue_full") == counts["full"]
    assert last.total("octavo_http_responses_total", route="/v1/completions", status="400") == counts["bad"]


async def test_a_request_counts_its_tokens_samples_and_times_once(api, engine) -> None:
    for text in ("ab", "abcd"):
        engine.answer(text, ledger=engine.make_ledger())
    assert (await api.completion(prompt="12345", n=2, max_tokens=7)).status_code == 200
    values = {
        "octavo_request_prompt_tokens_sum": 10,
        "octavo_request_generation_tokens_sum": 6,
        "octavo_request_max_tokens_sum": 14,
        "octavo_request_samples_sum": 2,
        "octavo_request_samples_count": 1,
        "octavo_time_per_output_token_seconds_count": 2,
        "octavo_request_queue_seconds_sum": 2 * 0.125,
        "octavo_request_prefill_seconds_sum": 2 * 0.25,
        "octavo_request_decode_seconds_sum": 2 * 0.625,
        "octavo_request_inference_seconds_sum": 2 * 0.875,
        "octavo_request_inference_seconds_count": 2,
    }
    assert {name: await api.metric(name) for name in values} == values


async def test_a_request_of_one_token_has_no_time_between_tokens(api, engine) -> None:
    engine.answer("a")
    await api.completion()
    assert await api.metric("octavo_time_per_output_token_seconds_count") == 0


async def test_what_a_stop_string_or_an_abort_ended_queued_and_computed_too(api, engine) -> None:
    engine.abort_ledger = engine.make_ledger(queue_seconds=2.0, prefill_seconds=None, decode_seconds=None)
    engine.answer("ab-stop-cd")
    assert (await api.completion(stop=["stop"])).status_code == 200
    assert await api.metric("octavo_request_queue_seconds_sum") == 2.0
    assert await api.metric("octavo_request_prefill_seconds_count") == 0
    assert await api.outcomes() == {"stop": 1}
