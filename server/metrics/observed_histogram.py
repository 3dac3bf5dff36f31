"""ObservedHistogram: a histogram of the catalogue that is cheap to add to, for what happens with every token.

prometheus-client's own takes several locks and a walk over its buckets for each value. This one belongs to one thread,
the event loop's, and makes what a scrape shows when there is one.
"""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client.metrics_core import Metric

from server.metrics.family import histogram_family
from server.metrics.metric_spec import MetricSpec


class ObservedHistogram:
    """Counts of values by bucket."""

    def __init__(self, spec: MetricSpec) -> None:
        self._spec = spec
        self._bounds = list(map(float, spec.buckets))
        self._counts = [0] * (len(spec.buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """``times`` events had this value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self) -> Metric:
        return histogram_family(self._spec, self._counts, self._sum)
