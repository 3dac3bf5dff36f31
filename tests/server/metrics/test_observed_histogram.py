"""The cheap histogram shows what prometheus-client's own shows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.metrics.metric_spec import histogram
from server.metrics.observed_histogram import ObservedHistogram

BUCKETS = (0.001, 0.5, 1, 2560)
SPEC = histogram("wait_seconds", "Seconds of waiting.", BUCKETS)


class Shown(Collector):
    """Collects one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def test_it_shows_what_prometheus_clients_own_histogram_shows() -> None:
    theirs = CollectorRegistry()
    mine = ObservedHistogram(SPEC)
    original = Histogram(SPEC.name, SPEC.help, registry=theirs, buckets=BUCKETS)
    for seconds, times in ((0.0005, 1), (0.001, 2), (0.25, 3), (1, 1), (1.5, 1), (5000, 1)):
        mine.observe(seconds, times)
        for _ in range(times):
            original.observe(seconds)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(Shown(mine.family())).decode().splitlines() == expected


def test_an_unused_one_shows_all_its_series() -> None:
    text = generate_latest(Shown(ObservedHistogram(SPEC).family())).decode()
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.rpartition(" ")[2] for line in samples] == ["0.0"] * (len(BUCKETS) + 1 + 2)
