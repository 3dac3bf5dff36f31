"""Tally: a counter of the catalogue that counts what the API process sees happen, by labels.

Belongs to one thread, the event loop's. Invariant: a series that was shown once is always shown.
"""

from __future__ import annotations

from prometheus_client.metrics_core import Metric

from server.metrics.family import family
from server.metrics.metric_spec import MetricSpec


class Tally:
    """How often something happened, for each set of label values."""

    def __init__(self, spec: MetricSpec) -> None:
        self._spec = spec
        self._counts = dict.fromkeys(spec.known_label_sets, 0)

    def count(self, *labels: str) -> None:
        self._counts[labels] = self._counts.get(labels, 0) + 1

    def expect(self, *labels: str) -> None:
        """Show the series with these labels from now on, with 0 until something happens."""
        self._counts.setdefault(labels, 0)

    def knows(self, *labels: str) -> bool:
        """Whether there is a series with these labels."""
        return labels in self._counts

    def family(self) -> Metric:
        return family(self._spec, self._counts.items())
