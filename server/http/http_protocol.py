"""HTTP/1.1 on one connection, with a bound on what a client may send outside of a body.

Knows bytes and parser events only. Invariant: a connection never holds much more than ``MAX_HEAD_BYTES`` of a request's
head (request line and headers) or of chunk framing and trailers; one that sends more gets 431 and is closed.
"""

from __future__ import annotations

import http

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import ApiError, bad_request

MAX_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 16 * 1024  # what is fed to the parser at once, so what a count may be off by


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which alone would read headers of any size."""

    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing():
                return
            piece = data[start : start + PIECE_BYTES]
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                message = f"the headers are larger than {MAX_HEAD_BYTES} bytes"
                self._refuse(ApiError(431, message, code="request_header_fields_too_large"))

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(bad_request("the request is not valid HTTP", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Answer outside of the app, which has no request yet, and close."""
        body = orjson.dumps(error.body())
        status = f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}"
        headers = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(f"{status}\r\n{headers}\r\n\r\n".encode() + body)
        self.transport.close()
