"""RequestPhases: when a request came, started, had its first token and ended, and so how long each phase took.

    arrived ──queue──► started ──prefill──► first_token ──decode──► ended

Invariant: the phases that a request came to add up to its time from arrival to its end. What happens in a phase, a
preemption say, is part of it; only a start before the first token begins prefill anew, and so prolongs the queue.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestPhases:
    """Moments on the scheduler's clock. ``started`` is the last start before the first token."""

    arrived: float = 0.0
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None

    def start(self, now: float) -> None:
        """It got pages; after the first token that is part of decode."""
        if self.first_token is None:
            self.started = now

    def seconds(self, now: float) -> tuple[float, float | None, float | None]:
        """Of queue, prefill and decode, the one that lasts up to ``now``; None for those it has not come to."""
        end = now if self.ended is None else self.ended
        if self.started is None:
            return end - self.arrived, None, None
        queue = self.started - self.arrived
        if self.first_token is None:
            return queue, end - self.started, None
        return queue, self.first_token - self.started, end - self.first_token
