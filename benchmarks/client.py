"""Sends a workload to an OpenAI-compatible server and stamps the bytes of its streamed answers as they arrive.

Does not know what a prompt means or what the figures are. Invariants: never more than ``concurrency`` requests are
under way, and never fewer while there are some left; a request that fails is a record, not an exception; every
request has its own connection, so that none waits behind another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from benchmarks.stream import Arrival, RequestRecord, failed, parse_stream
from benchmarks.workload import Prompt

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server and how to ask it. ``extra`` is merged into every request; ``timeout`` is in seconds per request."""

    url: str
    model: str
    chat: bool = False
    ignore_eos: bool = True
    api_key: str | None = None
    timeout: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"{self.url}/v1/{'chat/completions' if self.chat else 'completions'}"

    @property
    def headers(self) -> dict[str, str]:
        authorization = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **authorization}

    def body(self, prompt: Prompt, max_tokens: int) -> bytes:
        """One greedy, streamed request that reports its usage.

        Raises ValueError for a prompt of token ids to the chat endpoint, which takes text only.
        """
        question: dict[str, Any]
        if not self.chat:
            question = {"prompt": prompt}
        elif isinstance(prompt, str):
            question = {"messages": [{"role": "user", "content": prompt}]}
        else:
            raise ValueError("the chat endpoint takes no token ids; leave --tokenizer out")
        options = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return orjson.dumps(options | question | ({"ignore_eos": True} if self.ignore_eos else {}) | dict(self.extra))


class Client:
    """An open HTTP client for one target; use it as an asynchronous context manager."""

    def __init__(self, target: Target, clock: Clock = time.perf_counter) -> None:
        self._target = target
        self._clock = clock

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._target.timeout),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=self._target.headers,
            read_bufsize=2**20,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def first_model(self) -> str:
        """The id of the first model that the server lists. Raises aiohttp.ClientError if it does not answer."""
        async with self._session.get(f"{self._target.url}/v1/models") as response:
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])

    async def request(self, prompt: Prompt, max_tokens: int) -> RequestRecord:
        """Send one request and read its answer to the end."""
        body = self._target.body(prompt, max_tokens)
        arrivals: list[Arrival] = []
        sent = self._clock()
        try:
            async with self._session.post(self._target.endpoint, data=body) as response:
                if response.status != 200:
                    return failed(sent, f"{response.status} {await response.text()}")
                async for data in response.content.iter_any():
                    arrivals.append(Arrival(self._clock(), data))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return failed(sent, repr(error))
        return parse_stream(sent, arrivals)

    async def run(
        self,
        prompts: Sequence[Prompt],
        *,
        output_tokens: int,
        concurrency: int,
        on_done: Callable[[RequestRecord], None] = lambda record: None,
    ) -> tuple[list[RequestRecord], float]:
        """Send all prompts, ``concurrency`` at a time; return the records in their order, and the wall seconds."""
        records: dict[int, RequestRecord] = {}
        todo: Iterator[tuple[int, Prompt]] = iter(enumerate(prompts))

        async def worker() -> None:
            for index, prompt in todo:
                records[index] = await self.request(prompt, output_tokens)
                on_done(records[index])

        start = self._clock()
        await asyncio.gather(*(worker() for _ in range(min(concurrency, len(prompts)))))
        wall = self._clock() - start
        return [records[index] for index in range(len(prompts))], wall
