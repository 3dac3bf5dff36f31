"""What is promised to whoever waits for an answer: the objectives that boards show and alerts watch.

Change them here and write everything anew. Invariant: a bound is that of a bucket, so that the share within is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.metrics.catalogue import ITL, TTFT
from server.metrics.metric_spec import MetricSpec


@dataclass(frozen=True, slots=True)
class Objective:
    """A share ``target`` of the observations of ``histogram`` shall be at most ``seconds``."""

    name: str
    histogram: MetricSpec
    seconds: float
    target: float

    @property
    def budget(self) -> float:
        """The share that may be slower."""
        return round(1 - self.target, 9)

    @property
    def words(self) -> str:
        return f"{self.target:.0%} within {self.seconds:g} s"


TTFT_OBJECTIVE = Objective("TTFT", TTFT, 2.0, 0.99)
ITL_OBJECTIVE = Objective("ITL", ITL, 0.2, 0.99)
