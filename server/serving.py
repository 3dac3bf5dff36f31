"""One `octavo serve` from the bound socket to the exit status.

Puts the parts together and owns their order: the engine's process runs already, for it takes longest; tokenizer and
HTTP stack load meanwhile; HTTP answers at once, with 503 until the engine serves. On the first signal readiness ends,
running requests finish, then everything closes; a second signal does not wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.client import EngineClient
from engine.engine_process import EngineProcess
from engine.log_format import log_in_background
from server.http.listener import listen, url
from server.model_start import FoundModel, ModelStart, find_model
from server.options import ServeOptions
from server.startup import say, say_started

if TYPE_CHECKING:
    from server.http.http_server import HttpServer
    from server.observation.journal import RequestObserver
    from server.state import ServerState

DRAIN_POLL_SECONDS = 0.05


def serve(options: ServeOptions, began: float, process: EngineProcess) -> int:
    """Serve until a signal; the exit status. ``began`` is when the command did, by ``time.monotonic``.

    ``process`` waits to be told what to serve.

    Raises ListenError, CheckpointError, TextError or EngineStartError for what keeps it from serving.
    """
    with listen(options.host, options.port) as listener:
        model = find_model(options)
        log_in_background()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(options, model, process, listener, began))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    options: ServeOptions, model: FoundModel, process: EngineProcess, listener: socket.socket, began: float
) -> int:
    stop = _stop_on_signals()
    start = ModelStart(options, model, process)
    http: HttpServer | None = None
    state: ServerState | None = None
    observers: list[RequestObserver] = []
    try:
        # In a thread, so that this loop can tell the engine's process meanwhile what to load.
        http_server = await asyncio.to_thread(import_module, "server.http.http_server")
        state = start.state()
        from server.observation.observers import make_observers  # with the HTTP stack, which is there by now

        observers += await asyncio.to_thread(make_observers, options)
        for observer in observers:
            state.journal.add(observer)
        http = http_server.HttpServer(state, listener)
        finishing = asyncio.create_task(start.finish(state))
        if not await _unless(stop, finishing):
            finishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await finishing
            return 0
        ready, seconds = finishing.result()
        say_started(start.name, ready, seconds, time.monotonic() - began, url(listener))
        if await _unless(stop, asyncio.ensure_future(_until_over(http, start.client))):
            return 1  # a supervisor starts a new server; this one could only answer 503
        await _drain(state, options.shutdown_timeout)
        return 0
    finally:
        await asyncio.gather(start.close(), *((http.close(),) if http is not None else ()))
        if state is not None:
            state.journal.close()
        await asyncio.gather(*(asyncio.to_thread(observer.close) for observer in observers))


def _stop_on_signals() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets; the second ends the process on the spot."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)  # the engine's process ends when its socket closes
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stop


async def _unless(stop: asyncio.Event, work: asyncio.Future[Any]) -> bool:
    """Wait for ``work``, raising what it raises; False when ``stop`` is set first."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if work.done():
        work.result()
    return work.done()


async def _until_over(http: HttpServer, client: EngineClient) -> None:
    """Wait until either half of the server ends by itself, raising what HTTP raised."""
    giving_up = asyncio.create_task(client.until_given_up())
    try:
        await asyncio.wait((http.serving, giving_up), return_when=asyncio.FIRST_COMPLETED)
    finally:
        giving_up.cancel()
    if http.serving.done():
        http.serving.result()


async def _drain(state: ServerState, timeout: float) -> None:
    """Take no new request, and wait for those in flight for at most ``timeout`` seconds."""
    state.draining = True
    if state.client.num_in_flight:
        say(f"octavo: shutting down; {state.client.num_in_flight} requests may finish within {timeout:g} s")
    deadline = time.monotonic() + timeout
    while state.client.num_in_flight and time.monotonic() < deadline:
        await asyncio.sleep(DRAIN_POLL_SECONDS)
