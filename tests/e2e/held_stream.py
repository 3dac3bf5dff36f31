"""HeldStream: a server that sends the first event of a stream at once, and the last one only when it is let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE = 30.0
FIRST, LAST = b"data: first\n\n", b"data: last\n\n"


class Framing(Enum):
    """How a client knows where the answer ends."""

    CHUNKED = ("Transfer-Encoding", "chunked")
    UNTIL_CLOSED = ("Connection", "close")


class HeldStream(ThreadingHTTPServer):
    """Answers each request with two events, the second after ``released``; a probe of /ready with an empty 200."""

    daemon_threads = True

    def __init__(self, framing: Framing) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.framing = framing
        self.released = threading.Event()


class _Answer(BaseHTTPRequestHandler):
    server: HeldStream
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/ready":
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(*self.server.framing.value)
        self.end_headers()
        self._send(FIRST)
        self.server.released.wait(PATIENCE)
        self._send(LAST)
        if self.server.framing is Framing.CHUNKED:
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: bytes) -> None:
        chunked = self.server.framing is Framing.CHUNKED
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event) if chunked else event)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def held_stream(framing: Framing) -> Iterator[HeldStream]:
    """One that answers on threads of its own, until the block is left."""
    with HeldStream(framing) as stream:
        thread = threading.Thread(target=stream.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield stream
        finally:
            stream.released.set()
            stream.shutdown()
            thread.join()
