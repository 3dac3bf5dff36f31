"""LatencyHistogram: a Prometheus histogram that is cheap to add to, for what happens with every token.

prometheus-client's own takes several locks and a walk over its buckets for each value. This one belongs to one thread,
the event loop's, and makes what a scrape shows when there is one. Invariant: the last bucket counts everything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class LatencyHistogram(Collector):
    """Counts of seconds by bucket; ``buckets`` are the upper bounds, rising, to which infinity is added."""

    def __init__(self, name: str, what: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._what = what
        self._bounds = list(map(float, buckets))
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """``times`` events took so long."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._what)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        family.add_metric([], buckets=buckets, sum_value=self._sum)
        yield family
