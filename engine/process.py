"""The engine's process: one plain loop around one Engine.

    python -m engine.process FD      FD is its end of a socket pair; the first frame is the EngineConfig

Drains its inbox, runs a step, sends one message, and again; sleeps in `receive` when there is nothing to do. It ends
with its parent: a closed socket is an order to exit.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from engine.adapter_messages import LoadAdapter, UnloadAdapter
from engine.channel import Channel, ChannelClosed
from engine.errors import ConfigError
from engine.log_format import log_in_background, set_up_logging, tell
from engine.messages import (
    AbortRequests,
    Answer,
    EngineFailed,
    EngineRequest,
    Explained,
    ExplainRequest,
    Query,
    SequenceRead,
    Shutdown,
    StatsRead,
    TokenTable,
)
from engine.page_messages import PageRead, ReadPage, ReadPages, ReadSequence
from models.errors import CheckpointError

if TYPE_CHECKING:
    from engine.engine import Engine

ADAPTER_POLL_SECONDS = 0.01  # while there is nothing to do but to read an adapter
OPENMP_SPINS = "20000"  # a third of a millisecond: longer than what lies between two products of a layer
IDLE_AUDIT_SECONDS = 5.0  # a look at 100,000 pages takes a third of a second: not between two requests of a user
_PR_SET_PDEATHSIG = 1


def main() -> int:
    # The API process decides when to stop, also where a signal goes to the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see EngineProcess
    _die_with_parent()
    _calm_openmp()
    gc.disable()  # what a start makes it keeps
    started = time.perf_counter()
    # Here, so that it is a stage with a time; and before the config is there, for which the parent needs as long.
    from engine.engine import EngineBroken
    from engine.startup import StageTimes, build_engine

    times = StageTimes()
    times.seconds["torch"] = round(time.perf_counter() - started, 3)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        config = channel.receive_config()
        set_up_logging(config.log_format)
        log_in_background()
        try:
            engine, ready = build_engine(config, times, channel.send)
        except (CheckpointError, ConfigError) as error:
            channel.send(EngineFailed(str(error)))
            return 1
        except Exception as error:  # a kernel's compiler has errors of its own
            tell(logging.getLogger("octavo.engine"), "the engine could not start", level=logging.ERROR, error=error)
            reason = str(error).partition("\n")[0]
            channel.send(EngineFailed(f"the engine could not start: {type(error).__name__}: {reason}"))
            return 1
        gc.collect()
        gc.freeze()  # what a start leaves is for ever: not to be looked through again in the middle of a step
        gc.enable()
        channel.send(ready)
        try:
            run(engine, channel)
        except EngineBroken as error:
            channel.send(EngineFailed(str(error)))
            return 1
    except ChannelClosed:
        return 0
    return 0


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent is gone, also while it loads and reads no messages."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # it went before the request was made


def _calm_openmp() -> None:
    """Let OpenMP's helpers sleep soon after an operation of torch.

    Left alone they spin for milliseconds, on cores that the native library's own threads want for the next call. Read
    when torch is first imported; whoever starts the server may say otherwise.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = OPENMP_SPINS


def run(engine: Engine, channel: Channel) -> None:
    """Serve until told to stop."""
    audited, busy_until = True, time.monotonic()
    while True:
        due: float | None = None
        if engine.has_work:
            timeout: float | None = 0.0
        elif engine.adapters.is_loading:
            timeout = ADAPTER_POLL_SECONDS
        elif (due := _idle_work_due(engine)) is not None:
            timeout = due
        else:
            timeout = None if audited else IDLE_AUDIT_SECONDS
        messages = channel.receive(timeout)
        for message in messages:
            if isinstance(message, EngineRequest):
                engine.submit(message)
            elif isinstance(message, TokenTable):
                engine.use_tokens(message.tokens)
            elif isinstance(message, AbortRequests):
                engine.abort(message.request_ids)
            elif isinstance(message, Shutdown):
                return
            elif isinstance(message, LoadAdapter):
                engine.adapters.begin_load(message)
            else:
                channel.send(answer(engine, message))
        for loaded in engine.adapters.take_loaded():
            channel.send(loaded)
        if messages or engine.has_work:
            busy_until = time.monotonic()
        if engine.has_work:
            channel.send(engine.step())
            audited = False
        elif messages or engine.adapters.is_loading:
            continue
        elif due is not None and (audited or time.monotonic() - busy_until < IDLE_AUDIT_SECONDS):
            any(work.advance() for work in engine.idle_work)  # of the first that has something to do
        elif not audited:
            engine.audit()
            audited = True


def _idle_work_due(engine: Engine) -> float | None:
    """Seconds until the first of what is done while there are no requests; None where nothing is to do."""
    return min((due for work in engine.idle_work if (due := work.due) is not None), default=None)


def answer(engine: Engine, query: Query) -> Answer:
    """What a query asks for, as it is now."""
    if isinstance(query, UnloadAdapter):
        return engine.adapters.unload(query)
    if isinstance(query, ExplainRequest):
        return Explained(query_id=query.query_id, explanation=engine.explain(query.request_id))
    if isinstance(query, ReadPages):
        return engine.read_pages(query.query_id)
    if isinstance(query, ReadPage):
        return PageRead(query.query_id, engine.read_page(query.page))
    if isinstance(query, ReadSequence):
        return SequenceRead(query.query_id, engine.read_sequence(query.request_id))
    return StatsRead(query_id=query.query_id, stats=engine.stats())


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(status)  # skips torch's own teardown, most of a second
