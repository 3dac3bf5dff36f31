"""The cheap histogram shows what prometheus-client's own shows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from server.metrics.latency_histogram import LatencyHistogram

BUCKETS = (0.001, 0.5, 1, 2560)


def test_it_shows_what_prometheus_clients_own_histogram_shows() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = LatencyHistogram("wait_seconds", "Seconds of waiting.", BUCKETS)
    ours.register(mine)
    original = Histogram("wait_seconds", "Seconds of waiting.", registry=theirs, buckets=BUCKETS)
    for seconds, times in ((0.0005, 1), (0.001, 2), (0.25, 3), (1, 1), (1.5, 1), (5000, 1)):
        mine.observe(seconds, times)
        for _ in range(times):
            original.observe(seconds)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == expected


def test_an_unused_one_shows_all_its_series() -> None:
    registry = CollectorRegistry()
    registry.register(LatencyHistogram("wait_seconds", "Seconds of waiting.", BUCKETS))
    samples = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert [line.rpartition(" ")[2] for line in samples] == ["0.0"] * (len(BUCKETS) + 1 + 2)
