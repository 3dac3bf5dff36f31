"""PageMapFeed: one look at the engine's pages every half second, for everybody who watches.

    engine  <- read_pages, read_stats -  one poller  - cells, events ->  Watcher, Watcher, ...

The poller runs while somebody watches. It keeps the latest state only; each watcher has the numbers of the chunks that
changed since it was last told, so that one that reads slowly skips states and never piles any up. Invariants: one look
is under way at most, whatever the number of watchers; what a watcher has been told adds up to one look, or is about to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from engine.client import EngineClient, EngineError, EngineState
from engine.messages import EngineReady, EngineStats
from engine.page_messages import PagesRead
from server.dashboard.feed_events import engine_event, layout_event, requests_event, stats_event
from server.dashboard.page_cells import PageCells
from server.errors import unavailable
from server.request_registry import RequestRegistry
from server.version import octavo_version

TICK_SECONDS = 0.5
SILENCE_SECONDS = 2.0  # without an answer, after which watchers are told so
READY, CLOSED = EngineState.READY.value, EngineState.CLOSED.value
SILENT = "silent"
MAX_WATCHERS = 16


class _Watcher:
    """One who watches: what it has not been told yet."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.needs_layout = True
        self.chunks: set[int] = set()


class PageMapFeed:
    """The feed of one server. ``tick_seconds`` pass between two looks."""

    def __init__(
        self,
        client: EngineClient,
        registry: RequestRegistry,
        model: str,
        *,
        tick_seconds: float = TICK_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        max_watchers: int = MAX_WATCHERS,
    ) -> None:
        self._client = client
        self._registry = registry
        self._model = model
        self._version = octavo_version()
        self._tick_seconds = tick_seconds
        self._silence_seconds = silence_seconds
        self._max_watchers = max_watchers
        self._watchers: set[_Watcher] = set()
        self._polling: asyncio.Task[None] | None = None
        self._forget()

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    @property
    def is_polling(self) -> bool:
        return self._polling is not None and not self._polling.done()

    async def watch(self) -> AsyncGenerator[bytes]:
        """Events until the server shuts down, some at a time: all that is new since the ones before.

        Raises ApiError 503 instead of the first when too many watch already.
        """
        if len(self._watchers) >= self._max_watchers:
            raise unavailable(f"{self._max_watchers} watch the page map already; one has to leave", "too_many_watchers")
        watcher = _Watcher()
        self._watchers.add(watcher)
        if self._state:
            watcher.news.set()
        self._start_polling()
        try:
            is_last = False
            while not is_last:
                await watcher.news.wait()
                watcher.news.clear()
                if self._polling is not None and self._polling.done():
                    self._polling.result()  # an error of ours: it is for the log
                is_last = self._state == CLOSED
                yield self._news(watcher)
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._stop_polling()

    def close(self) -> None:
        """Tell everybody who watches that it is over."""
        self._stop_polling()
        self._state = CLOSED
        self._wake()

    def _start_polling(self) -> None:
        if self._state != CLOSED and not self.is_polling:
            self._polling = asyncio.create_task(self._poll())
            self._polling.add_done_callback(self._on_poll_end)

    def _stop_polling(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = None
        if self._state != CLOSED:
            self._forget()

    def _on_poll_end(self, polling: asyncio.Task[None]) -> None:
        if not polling.cancelled():
            self._wake()

    def _forget(self) -> None:
        """Nothing is known: neither the state of the engine nor of its pages."""
        self._state = ""
        self._ready: EngineReady | None = None
        self._cells = PageCells()
        self._layout = self._requests = self._stats = b""

    def _news(self, watcher: _Watcher) -> bytes:
        if self._state != READY:
            return engine_event(self._state)
        told = [self._layout] if watcher.needs_layout else []
        chunks = range(self._cells.num_chunks) if watcher.needs_layout else sorted(watcher.chunks)
        told += [self._cells.frame(number) for number in chunks]
        watcher.needs_layout, watcher.chunks = False, set()
        return b"".join((*told, self._requests, self._stats))

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.news.set()

    # ---- the poller

    async def _poll(self) -> None:
        while True:
            try:
                pages, stats = await self._look()
            except EngineError:
                state = self._client.state
                self._state = SILENT if state is EngineState.READY else state.value
            else:
                self._take(pages, stats)
            self._wake()
            await asyncio.sleep(self._tick_seconds)

    async def _look(self) -> tuple[PagesRead, EngineStats]:
        """Pages and statistics of one moment: asked at once, they are answered between the same two steps."""
        looking = asyncio.gather(self._client.read_pages(), self._client.read_stats())
        try:
            while not (await asyncio.wait((looking,), timeout=self._silence_seconds))[0]:
                self._state = SILENT
                self._wake()
            return looking.result()
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError, EngineError):
                await looking

    def _take(self, pages: PagesRead, stats: EngineStats) -> None:
        self._state = READY
        ready = self._client.ready
        assert ready is not None  # it has answered
        if ready is not self._ready:
            self._ready, self._cells = ready, PageCells()
            self._layout = layout_event(
                ready, pages, model=self._model, version=self._version, tick_seconds=self._tick_seconds
            )
            for watcher in self._watchers:
                watcher.needs_layout = True
        changed = self._cells.update(pages)
        for watcher in self._watchers:
            watcher.chunks |= changed
        self._requests = requests_event(pages, self._registry)
        self._stats = stats_event(self._cells.counts, stats)
