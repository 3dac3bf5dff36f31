"""The streamed form of an answer: deltas in, frames out, in the order the API promises.

Knows the order, not the fields: those come from a ChunkFormat. Invariants: text first, then one final chunk per choice
with its finish reason and no text; usage, if asked for, once, in a last chunk without choices; then ``[DONE]``, after a
failure too. While a request waits, its place in the queue comes in comments, if the engine tells it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol, TypeVar

import orjson

from server.errors import ApiError, internal_error
from server.generation.generation_group import Usage
from server.http.sse import DONE, comment, error_frame, frame
from server.observation.current import note_error

logger = logging.getLogger("octavo.server")


class Delta(Protocol):
    """More of one choice; ``queue_position`` comes alone, before all else."""

    @property
    def queue_position(self) -> int | None: ...


DeltaT = TypeVar("DeltaT", bound=Delta)
ShownT_contra = TypeVar("ShownT_contra", bound=Delta, contravariant=True)
MadeT_co = TypeVar("MadeT_co", bound=Delta, covariant=True)


class DeltaSource(Protocol[MadeT_co]):
    """What streams: the choices of one API request."""

    @property
    def usage(self) -> Usage:
        """Counts so far."""

    def stream(self) -> AsyncGenerator[tuple[int, MadeT_co]]:
        """(index of the choice, delta) as they come. Closed early, it aborts what still runs."""


class ChunkFormat(Protocol[ShownT_contra]):
    """Frames of one kind of answer."""

    def opening(self, index: int) -> bytes | None:
        """What comes before the first delta of a choice, if anything."""

    def more(self, index: int, delta: ShownT_contra) -> bytes | None:
        """What a delta brings, its end apart."""

    def final(self, index: int, delta: ShownT_contra) -> bytes | None:
        """The end of a choice, if this is its last delta; what it brings has been sent."""

    def usage(self, usage: Usage) -> bytes:
        """The counts, without choices."""


class ChunkEnvelope:
    """What all chunks of one answer share, encoded once. With ``include_usage``, ``usage`` is null in all but one.

    With ``usage_so_far``, every chunk has what that returns.
    """

    def __init__(
        self, fields: Mapping[str, object], *, include_usage: bool, usage_so_far: Callable[[], Usage] | None = None
    ) -> None:
        self._head = b"data: " + orjson.dumps(fields)[:-1] + b',"choices":'
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._fields = fields
        self._usage_so_far = usage_so_far

    def wrap(self, choices: bytes) -> bytes:
        """The frame whose choices are this JSON array."""
        if self._usage_so_far is not None:
            return self._head + choices + b',"usage":%b}\n\n' % orjson.dumps(self._usage_so_far().body())
        return self._head + choices + self._tail

    def around(self, before: bytes, after: bytes) -> Callable[[str], bytes]:
        """Makes the frame of a text, in a JSON array that is the same ``before`` and ``after`` it each time.

        What is the same is put together once: a frame is most of what a token costs beside the way there.
        """
        if self._usage_so_far is not None:
            return lambda text: self.wrap(before + orjson.dumps(text) + after)
        head, tail = self._head + before, after + self._tail
        return lambda text: head + orjson.dumps(text) + tail

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


async def stream_frames(
    source: DeltaSource[DeltaT], chunks: ChunkFormat[DeltaT], *, include_usage: bool
) -> AsyncGenerator[bytes]:
    """The frames of an answer. Raises only before the first frame; later failures become an error frame."""
    started = False
    opened: set[int] = set()
    waiting = QueuePosition()
    try:
        async with contextlib.aclosing(source.stream()) as deltas:
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
                if (more := chunks.more(index, delta)) is not None:
                    started = True
                    yield more
                if (final := chunks.final(index, delta)) is not None:
                    started = True
                    yield final
        if include_usage:
            yield chunks.usage(source.usage)
    except ApiError as error:
        if not started:
            raise
        note_error(error.kind)
        yield error_frame(error)
    except Exception:
        if not started:
            raise
        logger.exception("a stream failed")
        failure = internal_error()
        note_error(failure.kind)
        yield error_frame(failure)
    yield DONE
