"""A feed of the page map without waits between looks, and one who reads it."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import orjson
import pytest

from server.dashboard.page_map_feed import PageMapFeed
from server.request_registry import RequestRegistry
from server.state import ServerState


class Watching:
    """Reads a feed piece by piece and keeps what it said."""

    def __init__(self, pieces: AsyncGenerator[bytes]) -> None:
        self.pieces = pieces
        self.cells: dict[int, bytes] = {}  # by page

    async def read(self) -> list[tuple[str, Any]]:
        """The events of the next piece."""
        frames = (await anext(self.pieces)).decode().removesuffix("\n\n").split("\n\n")
        events = []
        for frame in frames:
            name, data = frame.split("\n")
            body = orjson.loads(data.removeprefix("data: "))
            events.append((name.removeprefix("event: "), body))
            if events[-1][0] == "pages":
                cells = base64.b64decode(body["cells"])
                for number in range(len(cells) // 8):
                    self.cells[body["first"] + number] = cells[8 * number : 8 * number + 8]
        return events

    async def until(self, *names: str) -> list[tuple[str, Any]]:
        """The events of the first piece that has one called so."""
        while True:
            events = await self.read()
            if any(name in names for name, _ in events):
                return events


@pytest.fixture
def feed(state: ServerState) -> PageMapFeed:
    """The feed of the server under test, which looks as often as it can."""
    state.page_map = PageMapFeed(state.client, state.requests, "tiny", tick_seconds=0, max_watchers=3)
    return state.page_map


@pytest.fixture
async def watch(feed: PageMapFeed) -> AsyncIterator[Callable[[], Watching]]:
    """Begins to watch; whoever still does when the test is over leaves then."""
    async with contextlib.AsyncExitStack() as stack:

        def begin() -> Watching:
            watching = Watching(feed.watch())
            stack.push_async_callback(watching.pieces.aclose)
            return watching

        yield begin


@pytest.fixture
def registry(state: ServerState) -> RequestRegistry:
    return state.requests
