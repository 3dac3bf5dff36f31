"""A chat's answer as the events of another API: deltas in, frames out.

Knows the order and what a failure does, not the events: those come from an `AnswerEvents`. Invariants: nothing is sent
before the first delta is known, so that what fails before it is an ordinary error answer; the events end exactly once,
by an end or by a failure; while the request waits, its place in the queue comes in comments, if the engine tells it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Protocol

from server.errors import ApiError, internal_error
from server.generation.generation_group import Usage
from server.http.sse import comment
from server.observation.current import note_error
from server.openai.chat_session import ChatDelta, ChatSession

logger = logging.getLogger("octavo.server")


class AnswerEvents(Protocol):
    """The events of one answer with one choice, as bytes to send, perhaps none."""

    def opening(self, usage: Usage) -> bytes:
        """What comes first."""

    def more(self, delta: ChatDelta) -> bytes:
        """What a delta brings."""

    def closing(self, usage: Usage) -> bytes:
        """The end of an answer, whose last delta has come."""

    def failure(self, error: ApiError) -> bytes:
        """The end instead, once the opening was sent."""


async def event_frames(session: ChatSession, events: AnswerEvents) -> AsyncGenerator[bytes]:
    """The frames of an answer. Raises only before the first; later failures become the events' own."""
    opened = waited = False
    try:
        async with contextlib.aclosing(session.stream()) as deltas:
            async for _, delta in deltas:
                if delta.queue_position is not None:
                    waited = True
                    yield comment(f"queued position={delta.queue_position}")
                    continue
                frames = b"" if opened else events.opening(session.usage)
                opened = True
                if frames := frames + events.more(delta):
                    yield frames
        yield events.closing(session.usage)
    except ApiError as error:
        if not opened and not waited:
            raise
        note_error(error.kind)
        yield (b"" if opened else events.opening(session.usage)) + events.failure(error)
    except Exception:
        if not opened and not waited:
            raise
        logger.exception("a stream failed")
        failure = internal_error()
        note_error(failure.kind)
        yield (b"" if opened else events.opening(session.usage)) + events.failure(failure)
