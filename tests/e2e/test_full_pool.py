"""64 requests of mixed sizes at once, in a pool that holds about 8 of them: nothing hangs and no answer changes."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

NUM_REQUESTS = 64
POOL_HOLDS = 8
UNDISTURBED_AT_ONCE = 6  # one after the other takes as long as all the rest
BLOCK_SIZE = 16
PAGES_PER_BLOCK = 7  # of the tiny Gemma 3: a page per full layer, six per windowed block


@dataclass
class Answer:
    """The text of one stream, and when each of its pieces came."""

    text: str = ""
    times: list[float] = field(default_factory=list)
    finish_reason: str | None = None


def bodies() -> list[dict[str, object]]:
    """Short and long prompts, short and long answers, some with a common beginning, some sampled."""
    rng = random.Random(64)
    shared = [rng.randrange(1, 256) for _ in range(64)]
    made = []
    for index in range(NUM_REQUESTS):
        length = rng.choice([3, 17, 40, 90, 200])
        prompt = shared[: length // 2] if index % 3 == 0 else []
        prompt = [*prompt, *(rng.randrange(1, 256) for _ in range(length - len(prompt)))]
        made.append(
            {
                "model": "tiny",
                "prompt": prompt,
                "max_tokens": rng.choice([10, 20, 60]),
                "temperature": 2.0 if index % 4 == 0 else 0.0,
                "seed": index,
                "ignore_eos": True,
                "stream": True,
            }
        )
    return made


async def ask(client: httpx.AsyncClient, body: dict[str, object]) -> Answer:
    answer = Answer()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                answer.text += choice["text"]
                answer.times.append(time.perf_counter())
                answer.finish_reason = choice["finish_reason"] or answer.finish_reason
    return answer


async def ask_all(url: str, at_once: int) -> list[Answer]:
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=NUM_REQUESTS)

    async def one(body: dict[str, object]) -> Answer:
        async with gate:
            return await ask(client, body)

    async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits) as client:
        return await asyncio.gather(*(one(body) for body in bodies()))


@pytest.fixture(scope="module")
def undisturbed(start_server: Callable[..., Server], tiny_gemma3_dir: Path) -> list[Answer]:
    """The answers of a server with room for all, of which few run side by side."""
    server = start_server(str(tiny_gemma3_dir), "--served-model-name", "tiny", "--dtype", "float32")
    answers = asyncio.run(ask_all(server.url, at_once=UNDISTURBED_AT_ONCE))
    assert sum(value for name, value in server.metrics().items() if name.startswith("octavo_preemptions_total")) == 0
    server.stop()
    return answers


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--async-scheduling",),
        ("--swap-space", "0.1"),
        ("--scheduling-policy", "fair"),
        ("--watermark-tokens", "0"),
    ],
    ids=lambda flags: "_".join(flags).replace("--", "") or "as_it_is",
)
def test_f04_f12_a_pool_that_holds_an_eighth_of_them_changes_no_answer(
    start_server: Callable[..., Server],
    tiny_gemma3_dir: Path,
    undisturbed: list[Answer],
    flags: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    mean_tokens = statistics.mean(len(body["prompt"]) + body["max_tokens"] for body in bodies())
    # a window of 32 is 3 blocks of 6 pages, and a full block takes one page
    pages = round(POOL_HOLDS * (mean_tokens / BLOCK_SIZE + 3 * (PAGES_PER_BLOCK - 1)))
    server = start_server(
        str(tiny_gemma3_dir), "--served-model-name", "tiny", "--dtype", "float32",
        "--num-gpu-blocks-override", str(pages), "--max-num-batched-tokens", "64", "--max-model-len", "512", *flags,
    )  # fmt: skip
    answers = asyncio.run(ask_all(server.url, at_once=NUM_REQUESTS))
    assert [answer.text for answer in answers] == [answer.text for answer in undisturbed]
    assert {answer.finish_reason for answer in answers} == {"length"}
    server.wait_settled()
    metrics = server.metrics()
    preemptions = sum(value for name, value in metrics.items() if name.startswith("octavo_preemptions_total"))
    gaps = sorted(after - before for one in answers for before, after in zip(one.times, one.times[1:], strict=False))
    with capsys.disabled():
        print(
            f"\n64 requests in {pages} pages {' '.join(flags)}: {preemptions:.0f} preemptions, "
            f"{metrics['octavo_recomputed_tokens_total']:.0f} tokens computed again, "
            f"p99 between tokens {gaps[int(0.99 * len(gaps))] * 1000:.0f} ms, longest {gaps[-1] * 1000:.0f} ms"
        )
    if "--watermark-tokens" in flags:
        assert preemptions > 0
    server.stop()
