"""The client with a real engine process: deltas, samples, aborts, refusals, and a process that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from engine.client import (
    AdapterRefused,
    EngineClient,
    EngineDied,
    EngineStartError,
    EngineState,
    EngineUnavailable,
    RequestTooLarge,
)
from engine.config import EngineConfig
from engine.messages import EngineRequest, RequestDelta
from engine.sampling_params import SamplingParams
from scheduler.request import FinishReason
from tests.lora_adapters import write_adapter

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tiny_llama_dir: Path) -> AsyncGenerator[EngineClient]:
    """One engine for all tests: its start is what takes long."""
    config = EngineConfig(model=str(tiny_llama_dir), dtype="float32", num_gpu_blocks_override=40, threads=1)
    client = EngineClient(config)
    await client.start()
    yield client
    await client.close()
    assert client.num_in_flight == 0


@pytest_asyncio.fixture(loop_scope="module")
async def client(started: EngineClient) -> AsyncGenerator[EngineClient]:
    """Idle before and after."""
    yield started
    assert started.num_in_flight == 0
    await idle(started)
    for _ in range(2):  # the step that tells of an abort may follow the first answer, not the second
        await started.read_stats()
    started.on_end = None


def request(request_id: str, max_tokens: int, *children: str) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(request_id=request_id, prompt_token_ids=[1, 2, 3], sampling=sampling, children=list(children))


async def collect(deltas: AsyncGenerator[RequestDelta]) -> list[RequestDelta]:
    return [delta async for delta in deltas]


async def idle(client: EngineClient) -> None:
    """Until the engine has said that nothing runs and no page is held."""
    async with asyncio.timeout(20):
        while client.stats.running or client.stats.waiting or sum(group.held for group in client.stats.groups):
            await asyncio.sleep(0.01)


async def test_deltas_merge_while_nobody_reads_and_end_once(client: EngineClient) -> None:
    deltas = client.generate(request("a", 50))
    first = await anext(deltas)
    await idle(client)
    rest = await collect(deltas)
    assert len(rest) == 1
    assert len(first.token_ids) + len(rest[0].token_ids) == 50
    assert rest[0].finish_reason is FinishReason.LENGTH
    assert client.num_in_flight == 0
    assert client.silent_seconds == 0.0


async def test_children_are_followed_beside_their_parent(client: EngineClient) -> None:
    parent = asyncio.create_task(collect(client.generate(request("p", 5, "c1", "c2"))))
    await asyncio.sleep(0)
    family = await asyncio.gather(parent, collect(client.follow("c1")), collect(client.follow("c2")))
    tokens = [[token for delta in deltas for token in delta.token_ids] for deltas in family]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len(tokens[0]) == 5
    with pytest.raises(ValueError, match="c1"):
        await anext(client.follow("c1"))


async def test_closing_a_parent_aborts_it_and_the_children_nobody_follows(client: EngineClient) -> None:
    before = client.stats.generation_tokens
    async with contextlib.aclosing(client.generate(request("p", 500, "c1", "c2"))) as deltas:
        await anext(deltas)
        assert client.num_in_flight == 3
    assert client.num_in_flight == 0
    await idle(client)
    assert client.stats.generation_tokens - before < 1500


async def test_every_end_is_told_once_with_its_ledger_also_where_nobody_reads_it(client: EngineClient) -> None:
    ends: list[RequestDelta] = []
    three = asyncio.Event()
    client.on_end = lambda last: ends.append(last) or (len(ends) == 3 and three.set())
    await collect(client.generate(request("whole", 5)))
    async with contextlib.aclosing(client.generate(request("p", 500, "c1"))) as deltas:
        await anext(deltas)
    async with asyncio.timeout(20):
        await three.wait()
    await client.read_stats()  # what was on its way has come
    assert {end.request_id: end.finish_reason for end in ends} == {
        "whole": FinishReason.LENGTH,
        "p": FinishReason.ABORT,
        "c1": FinishReason.ABORT,
    }
    assert len(ends) == 3
    assert all(end.ledger.page_seconds > 0.0 and end.ledger.decode_seconds > 0.0 for end in ends)


async def test_pages_and_sequences_are_read_while_they_are_held(client: EngineClient) -> None:
    async with contextlib.aclosing(client.generate(request("a", 500))) as deltas:
        await anext(deltas)
        pages, report = await asyncio.gather(client.read_pages(), client.read_sequence("a"))
        assert report is not None
        first = report.pages["full"][0]
        row = await client.read_page(first)
        assert row is not None
        assert (row.owners, row.state, row.group, row.ref_count) == (["a"], "held", "full", 1)
        assert len(pages.states) == 41
        [sequence] = pages.sequences
        assert (sequence.request_id, sequence.num_prompt_tokens) == ("a", 3)
        assert int.from_bytes(pages.holders[4 * first : 4 * first + 4], "little") == sequence.handle
        assert report.ledger.prefill_seconds > 0.0
    assert await client.read_page(41) is None
    assert await client.read_sequence("never known") is None


async def test_an_id_in_flight_is_refused(client: EngineClient) -> None:
    async with contextlib.aclosing(client.generate(request("a", 500))) as deltas:
        await anext(deltas)
        with pytest.raises(ValueError, match="in flight"):
            await anext(client.generate(request("a", 5)))


async def test_what_never_fits_is_known_before_it_is_sent(client: EngineClient) -> None:
    # 40 pages of 16 are 640 slots, and the last token of an answer needs none; the context is 2048
    client.check_fits(640, 0)
    client.check_fits(600, 41)
    assert client.max_new_tokens(600) == 41
    with pytest.raises(RequestTooLarge, match=r"41 KV pages.*40") as pool:
        client.check_fits(600, 42)
    with pytest.raises(RequestTooLarge, match="2048") as context:
        client.check_fits(2048, 1)
    with pytest.raises(RequestTooLarge, match="context length is 2048"):
        client.check_fits(2049, 0)
    assert (pool.value.code, context.value.code) == ("kv_capacity_exceeded", "context_length_exceeded")
    client.check_fits(600, 100_000, rotates=True)


async def test_d17_a_dead_engine_fails_what_is_in_flight_and_starts_again(client: EngineClient) -> None:
    assert client._process is not None
    first_pid = client._process.pid
    os.kill(first_pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(collect(client.generate(request(name, 5)))) for name in "ab"]
    await asyncio.sleep(0)
    os.kill(first_pid, signal.SIGKILL)
    for task in tasks:
        with pytest.raises(EngineDied):
            await task
    with pytest.raises(EngineUnavailable, match="restarting"):
        await anext(client.generate(request("c", 5)))
    async with asyncio.timeout(60):
        while client.state is not EngineState.READY:
            await asyncio.sleep(0.02)
    assert client._process.pid != first_pid
    assert len(await collect(client.generate(request("d", 5)))) > 0


async def test_an_engine_that_starts_again_has_the_adapters_that_it_had(
    client: EngineClient, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    async def tokens(name: str, adapter: str) -> list[int]:
        deltas = await collect(client.generate(msgspec.structs.replace(request(name, 8), adapter=adapter)))
        return [token for delta in deltas for token in delta.token_ids]

    for seed, name in enumerate(("stays", "unloaded", "lost")):
        directory = write_adapter(tmp_path / name, tiny_llama_dir, seed=seed)
        report = await client.load_adapter(name, str(directory))
        assert (report.name, report.path, report.rank) == (name, str(directory), 4)
    with pytest.raises(AdapterRefused, match="'stays' is loaded already") as refused:
        await client.load_adapter("stays", str(tmp_path / "lost"))
    assert refused.value.code == "adapter_exists"
    await client.unload_adapter("unloaded")
    assert list(client.adapters) == ["stays", "lost"]
    before = await tokens("before", "stays")
    assert before != await tokens("base", "")
    shutil.rmtree(tmp_path / "lost")

    assert client.pid is not None
    restarts = client.num_restarts
    os.kill(client.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while client.num_restarts == restarts:
            await asyncio.sleep(0.02)
    assert list(client.adapters) == ["stays"]
    assert await tokens("after", "stays") == before
    [ended] = await collect(client.generate(msgspec.structs.replace(request("none", 8), adapter="lost")))
    assert ended.failure.code == "unknown_adapter"
    with pytest.raises(AdapterRefused, match="no adapter 'lost' is loaded"):
        await client.unload_adapter("lost")
    with pytest.raises(AdapterRefused, match=r"has no adapter_config\.json") as refused:
        await client.load_adapter("lost", str(tmp_path / "lost"))
    assert refused.value.code == "invalid_adapter"


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    client = EngineClient(EngineConfig(model=str(tmp_path / "nothing")))
    with pytest.raises(EngineStartError, match="nothing"):
        await client.start()
    assert client.state is EngineState.FAILED
    await client.close()
