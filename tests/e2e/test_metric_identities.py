"""The identities of /metrics hold in every scrape of a loaded server, whatever becomes of requests and engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.metric_identities import Scrape, assert_identities, assert_nothing_went_back

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

NUM_REQUESTS = 24
PAGES = ("--max-model-len", "256", "--max-num-seqs", "8", "--num-gpu-blocks-override", "20")  # of 16 tokens


def body(index: int, **fields: object) -> dict[str, object]:
    """A completion of a prompt that begins like others, and of 3 to 40 tokens."""
    rng = random.Random(index)
    prompt = [*range(1, 33), *(rng.randrange(1, 256) for _ in range(rng.choice([1, 20, 60])))]
    return {"model": "tiny", "prompt": prompt, "max_tokens": rng.randrange(3, 41), "ignore_eos": True} | fields


class Load:
    """Requests of all kinds to one server, and what their answers say was generated and read."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.generated = 0
        self.read = 0
        self.lost = 0

    async def plain(self, index: int, **fields: object) -> None:
        response = await self._http.post("/v1/completions", json=body(index, n=2 if index % 3 == 0 else 1, **fields))
        if response.status_code == 200:
            self._count(response.json()["usage"])
        else:
            self.lost += 1

    async def streamed(self, index: int) -> None:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        response = await self._http.post("/v1/completions", json=body(index, **options))
        for line in response.text.split("\n"):  # and nowhere else: a text may hold what Unicode calls a line's end
            if line.startswith("data: {") and (usage := json.loads(line.removeprefix("data: ")).get("usage")):
                self._count(usage)

    async def left(self, index: int) -> None:
        """A client that leaves after the first piece of a long answer."""
        options = {"stream": True, "max_tokens": 120}
        async with self._http.stream("POST", "/v1/completions", json=body(index, **options)) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    break

    async def refused(self, index: int) -> None:
        response = await self._http.post("/v1/completions", json=body(index, max_tokens=-1))
        assert response.status_code in (400, 503)

    async def out_of_time(self, index: int) -> None:
        response = await self._http.post("/v1/completions", json=body(index, max_tokens=100, timeout=0.001))
        assert response.status_code >= 500

    async def embedded(self, index: int) -> None:
        response = await self._http.post("/v1/embeddings", json={"model": "tiny", "input": body(index)["prompt"]})
        if response.status_code == 200:
            self.read += response.json()["usage"]["prompt_tokens"]
        else:
            self.lost += 1

    def _count(self, usage: dict[str, int]) -> None:
        self.generated += usage["completion_tokens"]
        self.read += usage["prompt_tokens"]


class Watch:
    """Scrapes for as long as it is open, and holds each against the identities and the one before."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._one_at_a_time = asyncio.Lock()  # two that overlap may be answered in another order than they were made
        self.scrapes: list[Scrape] = []

    async def scrape(self) -> Scrape:
        async with self._one_at_a_time:
            scrape = Scrape((await self._http.get("/metrics")).text)
            assert_identities(scrape)
            if self.scrapes:
                assert_nothing_went_back(self.scrapes[-1], scrape)
            self.scrapes.append(scrape)
            return scrape

    async def until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.scrape()

    async def settled(self) -> Scrape:
        """The first scrape in which nothing is in flight and no page held."""
        async with asyncio.timeout(30):
            while True:
                scrape = await self.scrape()
                if scrape.total("octavo_requests_in_flight") == scrape.total("octavo_kv_used_pages") == 0:
                    return scrape


@contextlib.asynccontextmanager
async def watching(url: str) -> AsyncIterator[tuple[httpx.AsyncClient, Watch]]:
    """A client, and a watch that scrapes all the while and has seen nothing wrong."""
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        watch = Watch(http)
        over = asyncio.Event()
        watching = asyncio.create_task(watch.until(over))
        try:
            yield http, watch
        finally:
            over.set()
            await watching


@pytest.mark.slow
async def test_they_hold_under_load_preemption_aborts_refusals_and_errors(
    start_server: Callable[..., Server], tiny_llama_dir: Path
) -> None:
    server = start_server(str(tiny_llama_dir), "--served-model-name", "tiny", "--watermark-tokens", "0", *PAGES)
    async with watching(server.url) as (http, watch):
        load = Load(http)
        kinds = (load.plain, load.streamed, load.embedded, load.plain, load.streamed, load.refused)
        await asyncio.gather(*(kinds[index % len(kinds)](index) for index in range(NUM_REQUESTS)))
        undisturbed = await watch.settled()
        more = (load.left, load.out_of_time, load.plain, load.left)
        await asyncio.gather(*(more[index % len(more)](index) for index in range(NUM_REQUESTS)))
        last = await watch.settled()
    total = undisturbed.total
    assert load.lost == 0
    assert total("octavo_requests_total", outcome="abort") == total("octavo_requests_total", outcome="error") == 0
    assert total("octavo_request_queue_seconds_count") == total("octavo_requests_total") > NUM_REQUESTS / 2
    assert total("octavo_request_decode_seconds_count") == total("octavo_time_to_first_token_seconds_count")
    assert total("octavo_generation_tokens_total") == total("octavo_request_generation_tokens_sum")
    assert total("octavo_preemptions_total") > 0
    assert total("octavo_audit_failures_total") == last.total("octavo_audit_failures_total") == 0
    assert last.total("octavo_requests_total", outcome="abort") > 0
    assert last.total("octavo_requests_total", outcome="error") > 0
    assert len(watch.scrapes) > 10


async def test_tokens_are_those_that_answers_say(start_server: Callable[..., Server], tiny_llama_dir: Path) -> None:
    server = start_server(str(tiny_llama_dir), "--served-model-name", "tiny", *PAGES)
    async with watching(server.url) as (http, watch):
        load = Load(http)
        kinds = (load.plain, load.streamed, load.embedded)
        await asyncio.gather(*(kinds[index % len(kinds)](index) for index in range(NUM_REQUESTS)))
        last = await watch.settled()
    assert last.total("octavo_generation_tokens_total") == load.generated
    assert last.total("octavo_prompt_tokens_total") == load.read


@pytest.mark.slow
async def test_they_hold_when_the_engine_is_killed_and_nothing_ever_goes_back(
    start_server: Callable[..., Server], tiny_llama_dir: Path
) -> None:
    server = start_server(str(tiny_llama_dir), "--served-model-name", "tiny", *PAGES)
    async with watching(server.url) as (http, watch):
        load = Load(http)
        await asyncio.gather(*(load.plain(index) for index in range(4)))
        # long enough that none ends between a look at the engine and its end, also on a busy machine
        asking = [asyncio.create_task(load.plain(index, max_tokens=120)) for index in range(NUM_REQUESTS)]
        while watch.scrapes[-1].total("octavo_requests_running") == 0:
            await watch.scrape()
        os.kill(server.engine_pid(), signal.SIGKILL)
        await asyncio.gather(*asking)
        async with asyncio.timeout(60):
            while (await http.get("/ready")).status_code != 200:
                await watch.scrape()
        restarted = await watch.settled()
        await asyncio.gather(*(load.plain(index) for index in range(4)))
        last = await watch.settled()
    assert load.lost > 0
    assert restarted.total("octavo_requests_total", outcome="error") > 0
    assert last.total("octavo_engine_restarts_total") == 1
    assert last.total("octavo_steps_total") > restarted.total("octavo_steps_total") > 0
    assert last.total("octavo_step_tokens_count") > restarted.total("octavo_step_tokens_count") > 0
