"""Channel: messages over a stream socket, each a 4-byte length and a MessagePack body.

`Channel` is the engine's blocking side; the client reads the same frames with asyncio (`receive_from_engine`).
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct

import msgspec

from engine.config import EngineConfig
from engine.messages import FromEngine, ToEngine

LENGTH = struct.Struct("<I")

encode_message = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
decode_config = msgspec.msgpack.Decoder(EngineConfig).decode


def frame(message: msgspec.Struct) -> bytes:
    """One message as it goes over the wire."""
    body = encode_message(message)
    return LENGTH.pack(len(body)) + body


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """Blocking end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()

    def send(self, message: FromEngine) -> None:
        """Send one message; raises ChannelClosed when nobody reads any more."""
        try:
            self._socket.sendall(frame(message))
        except OSError as error:
            raise ChannelClosed from error

    def receive_config(self) -> EngineConfig:
        """The first frame: what to start."""
        while (body := self._next_body()) is None:
            self._fill()
        return decode_config(body)

    def receive(self, timeout: float | None) -> list[ToEngine]:
        """All messages that have arrived; waits up to ``timeout`` seconds (None: for ever) for the first.

        Raises ChannelClosed once the other side is gone and all it had sent was received.
        """
        messages: list[ToEngine] = []
        while True:
            while (body := self._next_body()) is not None:
                messages.append(decode_to_engine(body))
            readable, _, _ = select.select([self._socket], [], [], 0.0 if messages else timeout)
            if not readable:
                return messages
            try:
                self._fill()
            except ChannelClosed:
                if messages:
                    return messages  # the next call finds the socket as closed as it is now
                raise

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except OSError as error:
            raise ChannelClosed from error
        if not data:
            raise ChannelClosed
        self._buffer += data

    def _next_body(self) -> bytes | None:
        if len(self._buffer) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        return body


async def receive_from_engine(reader: asyncio.StreamReader) -> FromEngine | None:
    """The next message, or None when the engine is gone."""
    try:
        length = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
        return decode_from_engine(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
