"""One `octavo serve` from the bound socket to the exit status.

Puts the parts together and owns their order: the engine's process starts first, for it takes longest; tokenizer and
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

import msgspec

from engine.client import EngineClient
from engine.config import Checkpoint, resolve_checkpoint
from server.listener import listen, url
from server.options import ServeOptions
from server.startup import LoadingBar, announce, say, startup_table

if TYPE_CHECKING:
    from server.http_server import HttpServer
    from server.state import ServerState
    from server.text_parts import TextParts

DRAIN_POLL_SECONDS = 0.05


def serve(options: ServeOptions, began: float) -> int:
    """Serve until a signal; the exit status. ``began`` is when the command did, by ``time.monotonic``.

    Raises ListenError, CheckpointError, TextError or EngineStartError for what keeps it from serving.
    """
    with listen(options.host, options.port) as listener:
        now = time.monotonic()
        checkpoint = resolve_checkpoint(options.model, revision=options.revision)
        announce(checkpoint)
        seconds = {"checkpoint": time.monotonic() - now}
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(options, checkpoint, listener, began, seconds))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    options: ServeOptions, checkpoint: Checkpoint, listener: socket.socket, began: float, seconds: dict[str, float]
) -> int:
    stop = _stop_on_signals()
    bar = LoadingBar()
    client = EngineClient(msgspec.structs.replace(options.engine, model=str(checkpoint.path)), on_progress=bar.update)
    try:
        starting = asyncio.create_task(client.start())
        loading = asyncio.create_task(asyncio.to_thread(_load_text, checkpoint, options.chat_template))
        # In a thread, so that this loop can tell the engine's process meanwhile what to load.
        http_server = await asyncio.to_thread(import_module, "server.http_server")
        name = options.served_model_name or checkpoint.name
        state = _state(options, client, name)
        http: HttpServer = http_server.HttpServer(state, listener)
        try:
            started = asyncio.gather(starting, loading)
            if not await _unless(stop, started):
                started.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await started
                return 0
            bar.close()
            ready, text = starting.result(), loading.result()
            state.tokenizer, state.chat_template = text.tokenizer, text.chat_template
            seconds["tokenizer"] = text.seconds
            say(startup_table(name, ready, seconds, time.monotonic() - began, url(listener)))
            if await _unless(stop, asyncio.ensure_future(_until_over(http, client))):
                return 1  # a supervisor starts a new server; this one could only answer 503
            await _drain(state, options.shutdown_timeout)
            return 0
        finally:
            starting.cancel()
            loading.cancel()
            await asyncio.gather(client.close(), http.close())
    finally:
        bar.close()


def _load_text(checkpoint: Checkpoint, chat_template: str | None) -> TextParts:
    from server.text_parts import load_text_parts

    return load_text_parts(checkpoint, chat_template)


def _state(options: ServeOptions, client: EngineClient, name: str) -> ServerState:
    from server.auth import ApiKeys
    from server.state import ServerState

    return ServerState(
        client,
        name,
        silence_limit=options.silence_limit,
        max_request_bytes=options.max_request_bytes,
        api_keys=ApiKeys(options.api_keys),
        scheduling_policy=options.engine.scheduling_policy,
        stream_queue_position=options.stream_queue_position,
    )


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
