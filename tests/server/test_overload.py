"""The API over a real engine with more to do than it can: refused, timed out, told its place, asked why it waits.

The engine's process is stopped while requests are sent, so that it finds them all at once when it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.client import EngineClient
from engine.config import EngineConfig
from server.app import create_app
from server.auth import ApiKeys
from server.state import ServerState
from server.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

KEYS = ("first-key", "second-key")


class Overload:
    """One app over one engine with 40 pages of 16 tokens, in which two requests run at once and four may wait."""

    def __init__(self, client: EngineClient, state: ServerState) -> None:
        self.client = client
        self.state = state
        transport = httpx.ASGITransport(app=create_app(state), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://octavo")

    async def complete(self, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", None)
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 20, "ignore_eos": True, "temperature": 0} | fields
        return await self.http.post("/v1/completions", json=body, headers=headers)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The engine does nothing in here."""
        assert self.client._process is not None
        os.kill(self.client._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.client._process.pid, signal.SIGCONT)

    async def sent(self, num_requests: int) -> None:
        """Until so many more are in flight."""
        while self.client.num_in_flight < num_requests:
            await asyncio.sleep(0)

    async def metrics(self) -> dict[str, float]:
        lines = (await self.http.get("/metrics")).text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


Start = Callable[..., AbstractAsyncContextManager[Overload]]


@pytest.fixture
def overload(tiny_llama_dir: Path) -> Start:
    @contextlib.asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Overload]:
        fields = {"max_num_seqs": 2, "max_queued_requests": 4, "num_gpu_blocks_override": 40} | settings
        config = EngineConfig(model=str(tiny_llama_dir), dtype="float32", threads=1, **fields)
        client = EngineClient(config)
        await client.start()
        tokenizer = Tokenizer.from_directory(tiny_llama_dir)
        state = ServerState(client, "tiny", tokenizer=tokenizer, scheduling_policy=config.scheduling_policy)
        overload = Overload(client, state)
        try:
            yield overload
        finally:
            await overload.http.aclose()
            await client.close()

    return start


async def test_f17_of_50_at_once_those_that_run_or_wait_complete_and_the_rest_get_429(overload: Start) -> None:
    async with overload() as server:
        with server.paused():
            tasks = [asyncio.create_task(server.complete()) for _ in range(50)]
            await server.sent(50)
        responses = await asyncio.gather(*tasks)
        assert Counter(response.status_code for response in responses) == {200: 6, 429: 44}
        refused = [response for response in responses if response.status_code == 429]
        assert all(1 <= int(response.headers["retry-after"]) <= 120 for response in refused)
        assert {response.json()["error"]["code"] for response in refused} == {"queue_full"}
        assert len({response.json()["choices"][0]["text"] for response in responses if response.is_success}) == 1
        metrics = await server.metrics()
        assert metrics["octavo_requests_submitted_total"] == 50
        assert metrics['octavo_refusals_total{reason="queue_full"}'] == 44
        assert metrics['octavo_requests_total{outcome="length"}'] == 6
        assert metrics['octavo_requests_total{outcome="error"}'] == metrics["octavo_requests_in_flight"] == 0
        assert metrics["octavo_queued_tokens"] == metrics["octavo_requests_running"] == 0
        pages = sum(value for name, value in metrics.items() if name.startswith("octavo_kv_pages{"))
        assert pages == metrics["octavo_kv_pages_capacity"] == 40
        assert (await server.complete()).status_code == 200


async def test_f19_d18_d19_whatever_is_out_of_time_is_an_error_and_never_a_result(overload: Start) -> None:
    async with overload(max_num_seqs=1, queue_timeout=0.2, num_gpu_blocks_override=128) as server:
        with server.paused():
            first = asyncio.create_task(server.complete(max_tokens=1900, timeout=0.6, stream=True))
            await server.sent(1)
            rest = [asyncio.create_task(server.complete(**fields)) for fields in ({}, {"timeout": 0.01})]
            await server.sent(3)
        waited, late = await asyncio.gather(*rest)
        assert (waited.status_code, waited.json()["error"]["code"]) == (503, "queue_timeout")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "timeout")
        events = (await first).text.removesuffix("\n\n").split("\n\n")
        assert '"code":"timeout"' in events[-2]
        assert events[-1] == "data: [DONE]"
        plain = await server.complete(max_tokens=1900, timeout=0.3)
        assert (plain.status_code, plain.json()["error"]["code"]) == (504, "timeout")
        metrics = await server.metrics()
        assert metrics['octavo_requests_total{outcome="error"}'] == metrics["octavo_requests_submitted_total"] == 4
        assert metrics['octavo_refusals_total{reason="timeout"}'] == 3
        assert metrics['octavo_refusals_total{reason="queue_timeout"}'] == 1


async def test_streams_that_wait_count_down_to_their_start(overload: Start) -> None:
    async with overload(max_num_seqs=1) as server:
        server.state.stream_queue_position = True
        with server.paused():
            tasks = [asyncio.create_task(server.complete(stream=True, max_tokens=200)) for _ in range(4)]
            await server.sent(4)
        responses = await asyncio.gather(*tasks)
        for number, response in enumerate(responses):
            comments = [line for line in response.text.splitlines() if line.startswith(":")]
            assert comments == [f": queued position={place}" for place in range(number, 0, -1)]


async def test_a_waiting_request_is_explained_to_the_key_that_sent_it(overload: Start) -> None:
    async with overload(max_num_seqs=1, num_gpu_blocks_override=128) as server:
        server.state.api_keys = ApiKeys(KEYS)
        mine, other = ({"authorization": f"Bearer {key}"} for key in KEYS)
        running = asyncio.create_task(server.complete(max_tokens=1900, headers=mine | {"x-request-id": "long"}))
        await server.sent(1)
        async with asyncio.timeout(20):
            status = None
            while status != "running":
                status = (await server.http.get("/v1/requests/long", headers=mine)).json()["status"]
        waiting = asyncio.create_task(server.complete(headers=mine | {"x-request-id": "short"}))
        await server.sent(2)
        body = (await server.http.get("/v1/requests/short", headers=mine)).json()
        assert (body["status"], body["position"], body["sequences"]["waiting"]) == ("waiting", 1, 1)
        assert body["text"].startswith("It waits at position 1 for ")
        listed = (await server.http.get("/v1/requests", headers=mine)).json()["data"]
        assert [(one["request_id"], one["position"]) for one in listed][1] == ("short", 1)
        assert (await server.http.get("/v1/requests/short", headers=other)).status_code == 404
        metrics = await server.metrics()
        assert metrics["octavo_requests_running"] == 1
        assert sum(value for name, value in metrics.items() if name.startswith("octavo_requests_waiting{")) == 1
        running.cancel()
        assert (await waiting).headers["x-request-id"] == "short"


async def test_f21_a_better_priority_starts_first(overload: Start) -> None:
    async with overload(max_num_seqs=1, scheduling_policy="priority", priority_aging=1000.0) as server:
        ended = []

        async def complete(name: str, priority: int) -> None:
            response = await server.complete(priority=priority)
            assert response.status_code == 200
            ended.append(name)

        with server.paused():
            tasks = [asyncio.create_task(complete(*one)) for one in (("low", 5), ("high", -5), ("middle", 0))]
            await server.sent(3)
        await asyncio.gather(*tasks)
        assert ended == ["high", "middle", "low"]
