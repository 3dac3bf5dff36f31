"""EngineCounters: what the engine counted, over all the engine processes of this server's life.

A new engine process counts from 0. It is known by its new EngineReady; what was last seen of the one before is then
added to what earlier ones did. Invariants: no counter and no bucket ever goes back; nothing is added up before somebody
asks or a process is replaced.
"""

from __future__ import annotations

from engine.histogram import Histogram
from engine.messages import EngineReady, EngineStats
from server.metrics.engine_readings import COUNTERS, HISTOGRAMS, NO_STATS
from server.metrics.family import Labels
from server.metrics.metric_spec import MetricSpec


class EngineCounters:
    """Call ``update`` whenever a request ends, so that what an old process did is seen before it is gone."""

    def __init__(self) -> None:
        self._ready: EngineReady | None = None
        self._seen = NO_STATS
        self._counts: dict[MetricSpec, dict[Labels, float]] = {spec: {} for spec, _ in COUNTERS}  # of earlier processes
        self._histograms = {spec: read(NO_STATS) for spec, read in HISTOGRAMS}  # of earlier processes

    def update(self, ready: EngineReady | None, stats: EngineStats | None) -> None:
        if ready is None or stats is None:
            return
        if ready is not self._ready:
            self._counts, self._histograms = self.counts(), self.histograms()
            self._ready = ready
        self._seen = stats

    def counts(self) -> dict[MetricSpec, dict[Labels, float]]:
        """The counters, each by the values of its labels."""
        return {spec: _added(self._counts[spec], dict(read(self._seen))) for spec, read in COUNTERS}

    def histograms(self) -> dict[MetricSpec, Histogram]:
        return {spec: _sum(self._histograms[spec], read(self._seen)) for spec, read in HISTOGRAMS}


def _added(one: dict[Labels, float], other: dict[Labels, float]) -> dict[Labels, float]:
    return {labels: one.get(labels, 0.0) + other.get(labels, 0.0) for labels in one | other}


def _sum(one: Histogram, other: Histogram) -> Histogram:
    counts = [mine + yours for mine, yours in zip(one.counts, other.counts, strict=True)]
    return Histogram(bounds=one.bounds, counts=counts, total=one.total + other.total)
