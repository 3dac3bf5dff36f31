"""MetricSpec: what a metric is called, what it counts and by which labels, apart from whoever fills it in.

The catalogue (`server.metrics.catalogue`) is made of these; so are the dashboards, the rules and the documentation.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MetricKind(enum.StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"  # a gauge that is always 1, whose labels say something


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One family. ``name`` is without the suffixes of its series; ``buckets`` are a histogram's, infinity excepted."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which it is queried."""
        if self.kind is MetricKind.COUNTER:
            return (f"{self.name}_total",)
        if self.kind is MetricKind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


def gauge(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.GAUGE, text, labels)


def counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.COUNTER, text, labels)


def histogram(name: str, text: str, buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, text, (), buckets)


def info(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.INFO, text, labels)
