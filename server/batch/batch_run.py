"""BatchRun: the open requests of a batch through an app, as many at once as it can use, until none is left.

Knows statuses and tries again where a later try may do better; knows neither files nor signals. Invariant: a request is
reported once, with its final answer, or not at all when the run is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from server.batch.batch_line import BatchLine
from server.http.local_app import LocalApp

MAX_TRIES = 8
LONGEST_PAUSE_SECONDS = 60.0
PASSING = frozenset({429, 503})  # full queue, engine restarting
ENGINE_DIED = b'"code":"engine_died"'


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """What became of a request; ``body`` is JSON."""

    line: BatchLine
    status: int
    request_id: str | None
    body: bytes


async def run_batch(
    app: LocalApp, lines: Iterator[BatchLine], on_answer: Callable[[BatchAnswer], None], max_in_flight: int
) -> None:
    """Answer all ``lines``; the first thing that raises, an ``on_answer`` included, ends all, in a group."""

    async def work() -> None:
        for line in lines:  # shared: each worker takes the next
            on_answer(await _answer(app, line))

    async with asyncio.TaskGroup() as workers:
        for _ in range(max_in_flight):
            workers.create_task(work())


async def _answer(app: LocalApp, line: BatchLine) -> BatchAnswer:
    for number in range(1, MAX_TRIES + 1):
        async with app.post(line.url, line.body) as reply:
            body = await reply.body()
        passes = reply.status in PASSING or (reply.status == 500 and ENGINE_DIED in body)
        if not passes or reply.headers.get("x-should-retry") == "false" or number == MAX_TRIES:
            break
        await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, float(reply.headers.get("retry-after", 1)) * number))
    return BatchAnswer(line, reply.status, reply.headers.get("x-request-id"), body)
