"""EngineClient: the asyncio side of the engine, as the API process sees it.

Starts the engine's process, sends it requests, hands out what comes back, and starts it again when it dies. Imports
no torch. Each request has one collector, in which deltas merge while its reader is slow: the engine never waits for a
socket and memory stays bounded by the tokens asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator

import msgspec

from block_manager.groups import plan_groups
from block_manager.sizing import Capacity
from engine.adapter_messages import AdapterAnswer, AdapterReport, LoadAdapter, UnloadAdapter
from engine.channel import frame, receive_from_engine
from engine.client_errors import AdapterRefused as AdapterRefused
from engine.client_errors import EngineDied as EngineDied
from engine.client_errors import EngineError as EngineError
from engine.client_errors import EngineStartError as EngineStartError
from engine.client_errors import EngineUnavailable as EngineUnavailable
from engine.client_errors import RequestTooLarge as RequestTooLarge
from engine.collector import Collector
from engine.config import EngineConfig
from engine.engine_process import EngineProcess
from engine.log_format import tell
from engine.messages import (
    AbortRequests,
    Answer,
    EngineFailed,
    EngineReady,
    EngineRequest,
    EngineStats,
    Explained,
    ExplainRequest,
    LoadProgress,
    Query,
    ReadStats,
    RequestDelta,
    RequestExplanation,
    SequenceRead,
    SequenceReport,
    Shutdown,
    StatsRead,
    StepOutput,
    TokenTable,
)
from engine.page_messages import PageRead, PageRow, PagesRead, ReadPage, ReadPages, ReadSequence
from engine.request_size import check_fits

MAX_RESTARTS = 3  # in RESTART_WINDOW seconds; then the engine stays down
RESTART_WINDOW = 60.0

logger = logging.getLogger("octavo.engine")


class EngineState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    CLOSED = "closed"


class EngineClient:
    """One engine process and the requests in flight in it.

    ``on_end`` is called with the last delta of every sequence as the engine sent it, also where nobody reads it any
    more, but not for what the engine's death ended. It must not raise. ``adapters`` are those that requests can choose,
    by name; an engine that is started again loads them again. ``process`` is the first one where it runs already; it
    becomes the client's.
    """

    process_module = "engine.process"

    def __init__(
        self,
        config: EngineConfig,
        *,
        process: EngineProcess | None = None,
        on_progress: Callable[[LoadProgress], None] | None = None,
        on_end: Callable[[RequestDelta], None] | None = None,
    ) -> None:
        self.on_end = on_end
        self.state = EngineState.STARTING
        self.ready: EngineReady | None = None
        self.stats: EngineStats | None = None
        self.config = config
        self.adapters: dict[str, AdapterReport] = {}
        self.num_restarts = 0  # times a process that died was replaced
        self._on_progress = on_progress or (lambda progress: None)
        self._process = process
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._capacity: Capacity | None = None
        self._collectors: dict[str, Collector] = {}
        self._unfollowed: set[str] = set()  # children whose deltas nobody reads yet
        self._query_ids = itertools.count(1)
        self._queries: dict[int, asyncio.Future[Answer]] = {}
        self._token_table: bytes | None = None  # as a frame
        self._knows_tokens = False  # this engine process
        self._gave_up = asyncio.Event()
        self._last_heard = 0.0
        self._deaths: list[float] = []

    # ---- the process

    async def start(self) -> EngineReady:
        """Start the engine process and wait until it serves; raises EngineStartError."""
        reader = await self._connect()
        try:
            ready = await self._until_ready(reader)
        except EngineStartError:
            self.state = EngineState.FAILED
            await self._reap()
            raise
        self._become_ready(ready)
        self._reading = asyncio.create_task(self._read(reader))
        return ready

    async def close(self) -> None:
        """Fail what is in flight, stop the process, wait for it."""
        was_ready = self.state is EngineState.READY
        self.state = EngineState.CLOSED
        self._fail_all(EngineUnavailable("the server is shutting down"))
        if was_ready:
            self._send(Shutdown())
        elif self._process is not None:
            self._process.kill()  # still loading: it reads no messages, and has nothing to lose
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        await self._reap()

    async def _connect(self) -> asyncio.StreamReader:
        """Have a process, and tell it what to serve."""
        if self._process is None:
            self._process = EngineProcess(self.process_module)
        self._knows_tokens = False
        reader, self._writer = await asyncio.open_connection(sock=self._process.connection)
        self._writer.write(frame(self._config_to_start()))
        return reader

    def _config_to_start(self) -> EngineConfig:
        """What the process is to start with: the second time, with the adapters that the first one had at its end."""
        if self.ready is None:
            return self.config
        adapters = {one.name: one.path for one in self.adapters.values()}
        return msgspec.structs.replace(self.config, adapters=adapters, skips_lost_adapters=True)

    async def _until_ready(self, reader: asyncio.StreamReader) -> EngineReady:
        while True:
            message = await receive_from_engine(reader)
            if message is None:
                status = await self._reap()
                raise EngineStartError(f"the engine process ended while starting, with status {status}")
            if isinstance(message, LoadProgress):
                self._on_progress(message)
            elif isinstance(message, EngineFailed):
                raise EngineStartError(message.message)
            elif isinstance(message, EngineReady):
                return message

    def _become_ready(self, ready: EngineReady) -> None:
        groups = plan_groups(ready.layer_windows)
        self._capacity = Capacity(groups, ready.block_size, ready.num_pages, ready.max_num_batched_tokens)
        self.ready, self.stats = ready, ready.stats
        self.adapters = {one.name: one for one in ready.adapters}
        self._last_heard = time.monotonic()
        self.state = EngineState.READY

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out messages for as long as the client lives, over any number of engine processes."""
        current: asyncio.StreamReader | None = reader
        while current is not None:
            reason = "the engine process died"
            while (message := await receive_from_engine(current)) is not None:
                self._last_heard = time.monotonic()
                if isinstance(message, Answer):
                    if isinstance(message, StatsRead):
                        self.stats = message.stats  # here, so that none overwrites what came later
                    elif isinstance(message, AdapterAnswer):
                        self.adapters = {one.name: one for one in message.adapters}
                    self._answer(message)
                elif isinstance(message, StepOutput):
                    self.stats = message.stats or self.stats
                    for delta in message.deltas:
                        if delta.finish_reason is not None and self.on_end is not None:
                            self.on_end(delta)
                        if (collector := self._collectors.get(delta.request_id)) is not None:
                            collector.put(delta)
                elif isinstance(message, EngineFailed):
                    reason = message.message
            current = await self._restart(reason)

    async def _restart(self, reason: str) -> asyncio.StreamReader | None:
        self.state = EngineState.RESTARTING
        self._fail_all(EngineDied(reason))
        status = await self._reap()
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < RESTART_WINDOW] + [now]
        fields = {"exit_status": status}
        tell(logger, f"{reason} (status {status})", level=logging.ERROR, fields=fields)
        if len(self._deaths) > MAX_RESTARTS:
            died = f"it died {len(self._deaths)} times within {RESTART_WINDOW:g} seconds"
            self._give_up(f"the engine is not started again: {died}")
            return None
        reader = await self._connect()
        try:
            self._become_ready(await self._until_ready(reader))
        except EngineStartError as error:
            await self._reap()
            self._give_up(f"the engine does not start again: {error}")
            return None
        self.num_restarts += 1
        tell(logger, "the engine serves again")
        return reader

    def _give_up(self, reason: str) -> None:
        tell(logger, f"{reason}; giving up", level=logging.ERROR)
        self.state = EngineState.FAILED
        self._gave_up.set()

    async def until_given_up(self) -> None:
        """Wait until the engine is down for good."""
        await self._gave_up.wait()

    async def _reap(self) -> int | None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is None:
            return None
        status = await asyncio.to_thread(self._process.wait)
        self._process = None
        return status

    @property
    def pid(self) -> int | None:
        """The id of the engine process; None where there is none."""
        return None if self._process is None else self._process.pid

    # ---- requests

    @property
    def num_in_flight(self) -> int:
        """Requests submitted and not finished."""
        return len(self._collectors)

    @property
    def silent_seconds(self) -> float:
        """Seconds since the engine last sent anything while it had work; 0 when idle."""
        return time.monotonic() - self._last_heard if self._collectors else 0.0

    def check_fits(self, num_prompt_tokens: int, max_tokens: int, *, rotates: bool = False) -> None:
        """Raise RequestTooLarge when the request could never run, even alone, by the block manager's own arithmetic.

        One that rotates may generate beyond the context; only its prompt must fit. So with ``max_tokens`` 0, where the
        prompt may fill the context.
        """
        check_fits(*self._serving(), num_prompt_tokens, max_tokens, rotates=rotates)

    def max_new_tokens(self, num_prompt_tokens: int) -> int:
        """Most tokens a prompt of this length could generate here, by context and pool; below 1: it does not fit."""
        ready, capacity = self._serving()
        return min(ready.max_model_len, capacity.max_tokens(ready.max_model_len - 1) + 1) - num_prompt_tokens

    async def learn_tokens(self, make_tokens: Callable[[], list[bytes]]) -> None:
        """Before the first request with a grammar: what the tokens stand for (see `TokenTable`), made in a thread."""
        if self._token_table is None:
            self._token_table = await asyncio.to_thread(lambda: frame(TokenTable(make_tokens())))

    async def generate(self, request: EngineRequest) -> AsyncGenerator[RequestDelta]:
        """Submit and yield deltas; the last has a finish_reason. Deltas merge while the consumer is slow.

        Closing the iterator before the last delta aborts the request. Raises EngineUnavailable before the first delta,
        EngineDied when the engine dies on it.
        """
        self._serving()
        family = [request.request_id, *request.children]
        for name in family:
            if name in self._collectors:
                raise ValueError(f"request {name} is in flight already")
        if not self._collectors:
            self._last_heard = time.monotonic()
        self._collectors.update((name, Collector()) for name in family)
        self._unfollowed.update(request.children)
        if request.sampling.grammar is not None:
            self._send_tokens()
        self._send(request)
        try:
            with self._collecting(request.request_id) as collector:
                while not collector.is_over:
                    yield await collector.get()
        finally:
            for name in self._unfollowed.intersection(request.children):
                self._unfollowed.discard(name)
                self._abandon(name)

    async def follow(self, child_id: str) -> AsyncGenerator[RequestDelta]:
        """The deltas of a child of a request whose `generate` has begun; otherwise like `generate`.

        A child that nobody follows is aborted when its parent's iterator is closed.
        """
        if child_id not in self._unfollowed:
            raise ValueError(f"{child_id} is no child of a request in flight, or is followed already")
        self._unfollowed.discard(child_id)
        with self._collecting(child_id) as collector:
            while not collector.is_over:
                yield await collector.get()

    async def explain(self, request_id: str) -> RequestExplanation | None:
        """Why a request waits, or was preempted; None when the engine does not know it, or no longer.

        Raises EngineUnavailable or EngineDied.
        """
        answer = await self._ask(lambda query_id: ExplainRequest(query_id, request_id))
        assert isinstance(answer, Explained)
        return answer.explanation

    async def read_stats(self) -> EngineStats:
        """Pages, queues and counters, now. Raises EngineUnavailable or EngineDied."""
        answer = await self._ask(ReadStats)
        assert isinstance(answer, StatsRead)
        return answer.stats

    async def read_pages(self) -> PagesRead:
        """Every page and sequence, now. Raises EngineUnavailable or EngineDied."""
        answer = await self._ask(ReadPages)
        assert isinstance(answer, PagesRead)
        return answer

    async def read_page(self, page: int) -> PageRow | None:
        """One page, now; None where there is none of that number. Raises EngineUnavailable or EngineDied."""
        answer = await self._ask(lambda query_id: ReadPage(query_id, page))
        assert isinstance(answer, PageRead)
        return answer.row

    async def read_sequence(self, request_id: str) -> SequenceReport | None:
        """One sequence, its pages and what it cost so far; None when the engine does not know it, or no longer.

        Raises EngineUnavailable or EngineDied.
        """
        answer = await self._ask(lambda query_id: ReadSequence(query_id, request_id))
        assert isinstance(answer, SequenceRead)
        return answer.report

    async def load_adapter(self, name: str, path: str, *, replaces: bool = False) -> AdapterReport:
        """Load an adapter from a directory, which requests can then choose.

        Raises AdapterRefused, EngineUnavailable or EngineDied.
        """
        answer = await self._ask(lambda query_id: LoadAdapter(query_id, name, path, replaces))
        return next(one for one in _adapters(answer) if one.name == name)

    async def unload_adapter(self, name: str) -> None:
        """Let go of an adapter; requests that use it may finish. Raises as `load_adapter`."""
        _adapters(await self._ask(lambda query_id: UnloadAdapter(query_id, name)))

    @contextlib.contextmanager
    def _collecting(self, request_id: str) -> Iterator[Collector]:
        """What collects for a request; who stops reading before its end has aborted it."""
        collector = self._collectors[request_id]
        try:
            yield collector
        finally:
            if collector.is_over:
                del self._collectors[request_id]
            else:
                self._abandon(request_id)

    def _abandon(self, request_id: str) -> None:
        del self._collectors[request_id]
        if self.state is EngineState.READY:
            self._send(AbortRequests([request_id]))

    def _send_tokens(self) -> None:
        """Each engine process is told once, and only where it needs them."""
        if self._token_table is None:
            raise ValueError("a request with a grammar came before the tokens")
        if not self._knows_tokens and self._writer is not None:
            self._writer.write(self._token_table)
            self._knows_tokens = True

    def _serving(self) -> tuple[EngineReady, Capacity]:
        if self.state is not EngineState.READY or self.ready is None or self._capacity is None:
            raise EngineUnavailable(f"the engine is {self.state.value}")
        return self.ready, self._capacity

    def _send(self, message: msgspec.Struct) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    async def _ask(self, make_query: Callable[[int], Query]) -> Answer:
        """Send a query and wait for its answer, which comes between two steps."""
        self._serving()
        query_id = next(self._query_ids)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queries[query_id] = answer
        self._send(make_query(query_id))
        try:
            return await answer
        finally:
            del self._queries[query_id]

    def _answer(self, message: Answer) -> None:
        waiting = self._queries.get(message.query_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _fail_all(self, error: EngineError) -> None:
        for answer in self._queries.values():
            if not answer.done():
                answer.set_exception(error)
        for collector in self._collectors.values():
            collector.fail(error)


def _adapters(answer: Answer) -> list[AdapterReport]:
    """Those that there are now; AdapterRefused where what was asked for was not done."""
    assert isinstance(answer, AdapterAnswer)
    if answer.problem:
        raise AdapterRefused(answer.problem, answer.code)
    return answer.adapters
