"""The HTTP server of one ServerState on a socket that listens already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn

from server.app import create_app
from server.http.direct_send import DirectSend
from server.http.http_protocol import BoundedHttpProtocol
from server.state import ServerState

KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 5


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: the order of a shutdown is not its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpServer:
    """Serves from construction on, in the running loop. ``serving`` ends when the server does."""

    def __init__(self, state: ServerState, listener: socket.socket) -> None:
        config = uvicorn.Config(
            DirectSend(create_app(state)),
            http=BoundedHttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._page_map = state.page_map
        self._server = _Uvicorn(config)
        self.serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def close(self) -> None:
        """Answer what is being answered, for a few seconds at most, then stop; who watches is told that it is over."""
        self._page_map.close()
        self._server.should_exit = True
        await self.serving
