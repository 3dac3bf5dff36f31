"""EngineClient: the asyncio side of the engine, as the API process sees it.

(interface first; the body follows)
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable

from engine.config import EngineConfig
from engine.messages import EngineReady, EngineRequest, EngineStats, LoadProgress, RequestDelta


class EngineState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    CLOSED = "closed"


class EngineError(Exception):
    """Base of what the client raises; the message is fit for a user."""


class EngineStartError(EngineError):
    """The engine could not start."""


class EngineUnavailable(EngineError):
    """The engine is not serving now (starting, restarting, closed): try again later (503)."""


class EngineDied(EngineError):
    """The engine process ended while the request was in flight."""


class RequestTooLarge(EngineError):
    """The request can never run here. ``code`` is "context_length_exceeded" or "kv_capacity_exceeded"."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class EngineClient:
    def __init__(self, config: EngineConfig, *, on_progress: Callable[[LoadProgress], None] | None = None) -> None: ...

    state: EngineState
    ready: EngineReady | None  # set once started
    stats: EngineStats | None  # the latest the engine sent

    async def start(self) -> EngineReady:
        """Start the engine process and wait until it serves; raises EngineStartError."""

    async def close(self) -> None:
        """Fail what is in flight, stop the process, wait for it."""

    @property
    def num_in_flight(self) -> int:
        """Requests submitted and not finished."""

    @property
    def silent_seconds(self) -> float:
        """Seconds since the engine last sent anything while it had work; 0 when idle."""

    def check_fits(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raise RequestTooLarge when the request could never run, even alone, by the block manager's own arithmetic."""

    def max_new_tokens(self, num_prompt_tokens: int) -> int:
        """Most tokens a prompt of this length could generate here: bounded by context and by the pool (may be < 1)."""

    def generate(self, request: EngineRequest) -> AsyncIterator[RequestDelta]:
        """Submit and yield deltas; the last has a finish_reason. Deltas merge while the consumer is slow.

        Closing the iterator before the last delta aborts the request. Raises EngineUnavailable before the first delta,
        EngineDied after it.
        """
