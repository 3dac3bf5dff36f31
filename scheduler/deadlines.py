"""Deadlines: which requests are out of time, found without looking at those that are not."""

from __future__ import annotations

import heapq

from scheduler.refusal import RefusalReason
from scheduler.request import Request


class Deadlines:
    """A heap of (time, request). Requests that ended are not taken out, but not kept alive either."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, RefusalReason, str]] = []

    def set(self, request: Request) -> None:
        """Remember the limits of a request that has arrived."""
        for seconds, reason in (
            (request.queue_timeout, RefusalReason.QUEUE_TIMEOUT),
            (request.timeout, RefusalReason.TIMEOUT),
        ):
            if seconds is not None:
                heapq.heappush(self._heap, (request.arrived + seconds, request.order, reason, request.request_id))

    def take_passed(self, now: float) -> list[tuple[str, int, RefusalReason]]:
        """(id, order, reason) of all that have passed, earliest first; the request may have ended since."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            _, order, reason, request_id = heapq.heappop(self._heap)
            passed.append((request_id, order, reason))
        return passed
