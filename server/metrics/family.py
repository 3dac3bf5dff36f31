"""family: what prometheus-client prints of one spec of the catalogue and its values.

Knows nothing of where values come from. Invariants: every series whose labels the spec knows is there, with 0 where no
value is given; a histogram's last bucket counts everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from server.metrics.metric_spec import MetricKind, MetricSpec

Labels = tuple[str, ...]  # the values of a spec's labels, in its order
Rows = Iterable[tuple[Labels, float]]


def family(spec: MetricSpec, rows: Rows = ()) -> Metric:
    """A gauge, a counter or an info with these values."""
    make = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
    made = make(spec.name, spec.help, labels=spec.labels)
    values: Mapping[Labels, float] = dict.fromkeys(spec.known_label_sets, 0.0) | dict(rows)
    for labels, value in values.items():
        made.add_metric(labels, value)
    return made


def histogram_family(spec: MetricSpec, counts: Sequence[int], total: float) -> Metric:
    """A histogram with ``counts`` by bucket, not yet added up, and the sum of what was observed."""
    made = HistogramMetricFamily(spec.name, spec.help)
    bounds = [*map(floatToGoString, map(float, spec.buckets)), "+Inf"]
    made.add_metric([], buckets=list(zip(bounds, map(float, accumulate(counts)), strict=True)), sum_value=total)
    return made
