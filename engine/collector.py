"""Collector: what one request's reader has not read yet, merged into one delta.

The engine never waits for a reader, and a slow reader costs no more memory than the tokens of its request.
"""

from __future__ import annotations

import asyncio

import msgspec

from engine.messages import RequestDelta


class Collector:
    """One writer, which never waits, and one reader."""

    def __init__(self) -> None:
        self._pending: RequestDelta | None = None
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, delta: RequestDelta) -> None:
        """Add what came; it merges with what was not read yet."""
        if self._pending is not None:
            delta = msgspec.structs.replace(
                delta,
                token_ids=self._pending.token_ids + delta.token_ids,
                logprob=self._pending.logprob + delta.logprob,
                logprobs=self._pending.logprobs + delta.logprobs,
                prompt_logprobs=self._pending.prompt_logprobs + delta.prompt_logprobs,
            )
        self._pending = delta
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """The reader gets what came before, then ``error``."""
        self._error = error
        self._arrived.set()

    async def get(self) -> RequestDelta:
        """All that came since the last call; waits for something. Raises what `fail` was given."""
        await self._arrived.wait()
        if self._pending is not None:
            delta, self._pending = self._pending, None
            if self._error is None:
                self._arrived.clear()
            return delta
        assert self._error is not None
        raise self._error
