"""The API process over a `benchmarks.fed_engine`: the app, uvicorn and the engine's client as `octavo serve` has them.

    python -m benchmarks.fed_server PORT [MODEL]      MODEL gives the tokenizer and the chat template

With ``OCTAVO_PROFILE`` in the environment, a profile of the event loop is written there when it ends. With
``OCTAVO_FED_LOG``, text or json, finished requests are logged; with ``OCTAVO_FED_TRACES``, they are traced to that URL.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import signal
import sys

import uvloop

from engine.client import EngineClient
from engine.config import EngineConfig, resolve_checkpoint
from engine.log_format import LogFormat
from server.garbage_collection import settle
from server.http.http_server import HttpServer
from server.http.listener import listen
from server.logs.request_log import RequestLog
from server.observation.journal import RequestObserver
from server.state import ServerState
from server.text_parts import load_text_parts

MODEL_NAME = "fed"
PROFILE_VARIABLE = "OCTAVO_PROFILE"
LOG_VARIABLE = "OCTAVO_FED_LOG"
TRACES_VARIABLE = "OCTAVO_FED_TRACES"


class FedClient(EngineClient):
    """The engine's client; what it starts has no model."""

    process_module = "benchmarks.fed_engine"


async def serve(port: int, model: str | None) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with listen("127.0.0.1", port) as listener:
        text = load_text_parts(resolve_checkpoint(model), None)
        client = FedClient(EngineConfig(model=model or ""))
        await client.start()
        state = ServerState(client, MODEL_NAME, tokenizer=text.tokenizer, chat_template=text.chat_template)
        observers = _observers()
        for observer in observers:
            state.journal.add(observer)
        http = HttpServer(state, listener)
        settle()
        await stop.wait()
        await client.close()
        await http.close()
        for observer in observers:
            observer.close()


def _observers() -> list[RequestObserver]:
    observers: list[RequestObserver] = []
    if url := os.environ.get(TRACES_VARIABLE):
        from server.tracing.span_export import SpanExport
        from server.tracing.tracer import RequestTracer

        observers.append(RequestTracer(SpanExport(url)))
    if log_format := os.environ.get(LOG_VARIABLE):
        observers.append(RequestLog(LogFormat(log_format), sys.stderr.fileno()))
    return observers


def main(arguments: list[str]) -> int:
    port, *model = arguments
    path = os.environ.get(PROFILE_VARIABLE)
    profile = cProfile.Profile() if path else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if profile is not None:
            profile.enable()
        runner.run(serve(int(port), model[0] if model else None))
        if profile is not None:
            profile.disable()
            profile.dump_stats(str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
