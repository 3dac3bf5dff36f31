"""Collector: what one request's reader has not read yet, merged into one delta.

The engine never waits for a reader, and a slow reader costs no more memory than the tokens of its request.
"""

from __future__ import annotations

import asyncio

import msgspec

from engine.messages import RequestDelta


class Collector:
    """One writer, which never waits, and one reader. ``is_over``: the reader has had the last delta, or the error."""

    def __init__(self) -> None:
        self.is_over = False
        self._pending: RequestDelta | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None  # an Event costs several times as much, for every token

    def put(self, delta: RequestDelta) -> None:
        """Add what came, which is the collector's from now on; it merges with what was not read yet."""
        if (pending := self._pending) is not None:
            # in place: to copy what lies unread, for every token, would be quadratic work
            pending.token_ids.extend(delta.token_ids)
            pending.logprobs.extend(delta.logprobs)
            pending.prompt_logprobs.extend(delta.prompt_logprobs)
            delta = msgspec.structs.replace(
                delta,
                token_ids=pending.token_ids,
                logprob=pending.logprob + delta.logprob,
                logprobs=pending.logprobs,
                prompt_logprobs=pending.prompt_logprobs,
            )
        self._pending = delta
        self._wake()

    def fail(self, error: Exception) -> None:
        """The reader gets what came before, then ``error``."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> RequestDelta:
        """All that came since the last call; waits for something. Raises what `fail` was given."""
        if self._pending is None and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._pending is not None:
            delta, self._pending = self._pending, None
            self.is_over = delta.finish_reason is not None
            return delta
        assert self._error is not None
        self.is_over = True
        raise self._error
