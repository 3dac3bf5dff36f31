"""CountedSequence: one sequence in the engine, counted when it comes and once when it is over, whatever ends it.

Knows outcomes and errors, not what comes of tokens. Invariants: one that was begun is counted exactly once, as stop,
length, abort or error, but for one that the engine refused to queue, which is counted as a refusal; what leaves is an
ApiError where the engine failed.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from engine.client import EngineError
from engine.messages import RequestDelta
from scheduler.request import FinishReason
from server.errors import ApiError, from_engine, from_failure, internal_error, unavailable
from server.metrics.catalogue import QUEUE_FULL
from server.metrics.metrics import Metrics, RequestEnd


class CountedSequence:
    """A context around all that asks the engine; ``describe`` tells the rest of an end by its outcome."""

    def __init__(self, metrics: Metrics, describe: Callable[[FinishReason], RequestEnd]) -> None:
        self._metrics = metrics
        self._describe = describe
        self._outcome: FinishReason | None = FinishReason.ABORT  # what it is when its consumer leaves

    def __enter__(self) -> Self:
        self._metrics.count_submitted()
        return self

    def check(self, delta: RequestDelta) -> None:
        """Raise ApiError for a delta that ends the sequence without a result."""
        if (failure := delta.failure) is not None:
            self._metrics.count_failure(failure.code)
            self._outcome = None if failure.code == QUEUE_FULL else FinishReason.ERROR
            raise from_failure(failure)
        if delta.finish_reason is FinishReason.ABORT:
            raise unavailable("the engine aborted the request", "aborted")  # nobody here asked for it

    def end(self, outcome: FinishReason | None) -> None:
        """The result is whole; ApiError where there is none, with which the engine should not have left."""
        self._outcome = outcome or FinishReason.ERROR
        if outcome is None:
            raise internal_error()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, ApiError):
            self._outcome = FinishReason.ERROR
        if self._outcome is not None:
            self._metrics.count_end(self._describe(self._outcome))
        if isinstance(error, EngineError):
            raise from_engine(error) from error
