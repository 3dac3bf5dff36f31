"""MetricSpec: what a metric is called, what it counts and by which labels, apart from whoever fills it in.

The catalogue (`server.metrics.catalogue`) is made of these; so are the dashboards, the rules and the documentation.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product


class MetricKind(enum.StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"  # a gauge that is always 1, whose labels say something


@dataclass(frozen=True, slots=True)
class Label:
    """A label whose ``values`` are known before anything happens; where each server has others, it is a plain name."""

    name: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, name: str, values: Iterable[str]) -> Label:
        return cls(name, tuple(map(str, values)))


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One family. ``name`` is without the suffixes of its series; ``buckets`` are a histogram's, infinity excepted.

    ``label_values`` has an entry for each of the ``labels``: the values it can have, or none where servers differ.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    label_values: tuple[tuple[str, ...], ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which it is queried."""
        if self.kind is MetricKind.COUNTER:
            return (f"{self.name}_total",)
        if self.kind is MetricKind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)

    @property
    def known_label_sets(self) -> list[tuple[str, ...]]:
        """The values of the labels of every series there is from the start; none where servers differ."""
        return list(product(*self.label_values))


def gauge(name: str, text: str, *labels: str | Label) -> MetricSpec:
    return _labelled(name, MetricKind.GAUGE, text, labels)


def counter(name: str, text: str, *labels: str | Label) -> MetricSpec:
    return _labelled(name, MetricKind.COUNTER, text, labels)


def histogram(name: str, text: str, buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, text, (), buckets)


def info(name: str, text: str, *labels: str) -> MetricSpec:
    return _labelled(name, MetricKind.INFO, text, labels)


def _labelled(name: str, kind: MetricKind, text: str, labels: tuple[str | Label, ...]) -> MetricSpec:
    names = tuple(label.name if isinstance(label, Label) else label for label in labels)
    values = tuple(label.values if isinstance(label, Label) else () for label in labels)
    return MetricSpec(name, kind, text, names, (), values)
