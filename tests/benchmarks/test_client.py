from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from benchmarks.client import Client, Target
from benchmarks.stream import RequestRecord
from benchmarks.workload import Prompt

if TYPE_CHECKING:
    from conftest import FakeServer


async def test_a_request_is_greedy_streamed_and_of_full_length(fake_server: FakeServer) -> None:
    async with Client(Target(url=fake_server.url, model="m", extra={"top_k": 3})) as client:
        record = await client.request(" one two", 5)

    assert fake_server.bodies == [
        {
            "model": "m",
            "prompt": " one two",
            "max_tokens": 5,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "top_k": 3,
        }
    ]
    assert record.error is None
    assert (len(record.chunk_times), record.output_tokens) == (5, 5)
    assert (record.prompt_tokens, record.cached_tokens) == (3, 2)


async def test_a_chat_request_carries_the_prompt_as_a_user_message(fake_server: FakeServer) -> None:
    async with Client(Target(url=fake_server.url, model="m", chat=True, ignore_eos=False)) as client:
        record = await client.request("one two", 4)

    assert fake_server.bodies[0]["messages"] == [{"role": "user", "content": "one two"}]
    assert "ignore_eos" not in fake_server.bodies[0]
    assert record.output_tokens == 4


def test_token_ids_to_the_chat_endpoint_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no token ids"):
        Target(url="", model="m", chat=True).body([1, 2], 1)


async def test_the_api_key_is_sent_as_a_bearer_token(fake_server: FakeServer) -> None:
    async with Client(Target(url=fake_server.url, model="m", api_key="secret")) as client:
        await client.request("one", 1)

    assert fake_server.headers[0]["Authorization"] == "Bearer secret"


async def test_times_come_from_the_given_clock_before_sending_and_at_each_read(fake_server: FakeServer) -> None:
    ticks = itertools.count(100)
    async with Client(Target(url=fake_server.url, model="m"), clock=lambda: float(next(ticks))) as client:
        record = await client.request("one", 3)

    assert record.sent == 100.0
    assert record.chunk_times[0] == 101.0
    assert list(record.chunk_times) == sorted(record.chunk_times)


class CountingClient(Client):
    """Counts how many of its requests are under way."""

    under_way = 0
    most_under_way = 0

    async def request(self, prompt: Prompt, max_tokens: int) -> RequestRecord:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        record = await super().request(prompt, max_tokens)
        self.under_way -= 1
        return record


async def test_as_many_requests_as_wanted_are_under_way_and_no_more(fake_server: FakeServer) -> None:
    done: list[RequestRecord] = []
    async with CountingClient(Target(url=fake_server.url, model="m")) as client:
        records, _ = await client.run(
            [" one" * (index + 1) for index in range(10)], output_tokens=2, concurrency=4, on_done=done.append
        )

    assert client.most_under_way == 4
    assert [record.prompt_tokens for record in records] == list(range(2, 12))
    assert len(done) == 10


async def test_wall_time_runs_from_the_first_request_to_the_last_byte(fake_server: FakeServer) -> None:
    ticks = itertools.count()
    async with Client(Target(url=fake_server.url, model="m"), clock=lambda: float(next(ticks))) as client:
        (record,), wall = await client.run(["one"], output_tokens=2, concurrency=1)

    assert record.sent == 1.0
    assert wall == next(ticks) - 1


async def test_an_error_status_is_a_record_with_the_servers_words(fake_server: FakeServer) -> None:
    fake_server.fail_from = 0
    async with Client(Target(url=fake_server.url, model="m")) as client:
        record = await client.request("one", 1)

    assert record.error == '503 {"error": {"message": "no free pages"}}'
    assert record.chunk_times == ()


async def test_a_refused_connection_is_a_record() -> None:
    async with Client(Target(url="http://127.0.0.1:1", model="m")) as client:
        (record,), _ = await client.run(["one"], output_tokens=1, concurrency=8)

    assert record.error is not None
    assert record.error.startswith("ClientConnectorError")


async def test_the_first_listed_model_is_found(fake_server: FakeServer) -> None:
    async with Client(Target(url=fake_server.url, model="")) as client:
        assert await client.first_model() == "fake-model"
