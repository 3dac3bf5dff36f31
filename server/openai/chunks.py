"""The streamed form of an answer: deltas in, frames out, in the order the API promises.

Knows the order, not the fields: those come from a ChunkFormat. Invariants: text first, then one final chunk per choice
with its finish reason and no text; usage, if asked for, once, in a last chunk without choices; then ``[DONE]``, after a
failure too. While a request waits, its place in the queue comes in comments, if the engine tells it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import orjson

from server.errors import ApiError, internal_error
from server.generation import TextDelta
from server.generation_group import GenerationGroup, Usage
from server.sse import DONE, comment, error_frame, frame

logger = logging.getLogger("octavo.server")


class ChunkFormat(Protocol):
    """Frames of one kind of answer."""

    def opening(self, index: int) -> bytes | None:
        """What comes before the first text of a choice, if anything."""

    def text(self, index: int, text: str) -> bytes:
        """New text."""

    def final(self, index: int, last: TextDelta) -> bytes:
        """The end of a choice; its text has been sent."""

    def usage(self, usage: Usage) -> bytes:
        """The counts, without choices."""


class ChunkEnvelope:
    """What all chunks of one answer share, encoded once. With ``include_usage``, ``usage`` is null in all but one."""

    def __init__(self, fields: Mapping[str, object], *, include_usage: bool) -> None:
        self._head = b"data: " + orjson.dumps(fields)[:-1] + b',"choices":'
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._fields = fields

    def wrap(self, choices: bytes) -> bytes:
        """The frame whose choices are this JSON array."""
        return self._head + choices + self._tail

    def usage(self, usage: Usage) -> bytes:
        return frame(orjson.dumps({**self._fields, "choices": [], "usage": usage.body()}))


class QueuePosition:
    """The place of an API request in the queue: that of its prompt which starts first."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._told: int | None = None

    def change(self, index: int, place: int) -> int | None:
        """The request's place, now that the prompt at ``index`` has this one; None while it is the one told last."""
        self._places[index] = place
        first = min(self._places.values())
        if first == self._told:
            return None
        self._told = first
        return first


async def stream_frames(group: GenerationGroup, chunks: ChunkFormat, *, include_usage: bool) -> AsyncGenerator[bytes]:
    """The frames of an answer. Raises only before the first frame; later failures become an error frame."""
    started = False
    opened: set[int] = set()
    waiting = QueuePosition()
    try:
        async with contextlib.aclosing(group.stream()) as deltas:
            async for index, delta in deltas:
                if delta.queue_position is not None:
                    if not opened and (place := waiting.change(index, delta.queue_position)) is not None:
                        started = True
                        yield comment(f"queued position={place}")
                    continue
                if index not in opened:
                    opened.add(index)
                    if (opening := chunks.opening(index)) is not None:
                        started = True
                        yield opening
                if delta.text:
                    started = True
                    yield chunks.text(index, delta.text)
                if delta.finish_reason is not None:
                    started = True
                    yield chunks.final(index, delta)
        if include_usage:
            yield chunks.usage(group.usage)
    except ApiError as error:
        if not started:
            raise
        yield error_frame(error)
    except Exception:
        if not started:
            raise
        logger.exception("a stream failed")
        yield error_frame(internal_error())
    yield DONE
