"""Prometheus metrics of one server, all named ``octavo_*``, in a registry of their own.

What the API process sees (outcomes, latencies) is counted as it happens; what the engine knows (pages, queues, tokens)
is read from its latest stats at every scrape. Invariants: every series exists from the first scrape on, with 0;
counters never go back, not even when a new engine process starts its own at 0; labels come from fixed sets, never from
a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.client import EngineClient, EngineState
from engine.messages import EngineReady, EngineStats
from scheduler.request import FinishReason

TTFT_BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560,
)  # fmt: skip
ITL_BUCKETS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 1, 2, 5, 10, 20, 40, 80,
)  # fmt: skip
E2E_BUCKETS = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 3, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920,
    3840, 7680,
)  # fmt: skip

# Counters of EngineStats: field, metric, help.
ENGINE_COUNTERS = (
    ("preemptions", "octavo_preemptions", "Requests that gave their pages back to be computed again later."),
    ("prompt_tokens", "octavo_prompt_tokens", "Prompt tokens of admitted requests, cached ones included."),
    ("cached_prompt_tokens", "octavo_cached_prompt_tokens", "Prompt tokens read from cached pages, not computed."),
    ("recomputed_tokens", "octavo_recomputed_tokens", "Tokens computed once more after a preemption."),
    ("generation_tokens", "octavo_generation_tokens", "Tokens generated."),
    ("steps", "octavo_steps", "Steps the engine ran."),
    ("step_seconds", "octavo_step_seconds", "Seconds the engine spent in steps."),
    ("audit_failures", "octavo_audit_failures", "Audits that found a page not accounted for."),
)


class EngineCounters:
    """The engine's counters, summed over the engine processes of this server's life.

    A new engine process is known by its new EngineReady; the last counts seen of the one before are then kept as an
    offset. Call ``update`` whenever a request ends, so that what the old process did is seen before it is gone.
    """

    def __init__(self) -> None:
        self._ready: EngineReady | None = None
        self._seen = dict.fromkeys((field for field, _, _ in ENGINE_COUNTERS), 0.0)
        self._offset = dict(self._seen)

    def update(self, ready: EngineReady | None, stats: EngineStats | None) -> None:
        if ready is None or stats is None:
            return
        if ready is not self._ready:
            self._ready = ready
            for field, seen in self._seen.items():
                self._offset[field] += seen
        for field in self._seen:
            self._seen[field] = float(getattr(stats, field))

    def total(self, field: str) -> float:
        return self._offset[field] + self._seen[field]


class EngineCollector(Collector):
    """Turns the engine's latest stats into metric families at scrape time."""

    def __init__(self, client: EngineClient, counters: EngineCounters) -> None:
        self._client = client
        self._counters = counters

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not collect at registration to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._client.stats
        yield from self._page_gauges(stats)
        yield from self._queue_gauges(stats)
        self._counters.update(self._client.ready, stats)
        for field, name, documentation in ENGINE_COUNTERS:
            yield CounterMetricFamily(name, documentation, value=self._counters.total(field))

    def _page_gauges(self, stats: EngineStats | None) -> Iterator[Metric]:
        pages = GaugeMetricFamily(
            "octavo_kv_pages",
            "KV pages by state and layer group; free pages belong to the pool. The sum is octavo_kv_pages_capacity.",
            labels=("group", "state"),
        )
        groups = [] if stats is None else stats.groups
        total = 0 if stats is None else stats.pages_total
        page_bytes = 0 if stats is None else stats.page_bytes
        held = sum(group.held for group in groups)
        pages.add_metric(("pool", "free"), 0 if stats is None else stats.pages_free)
        for group in groups:
            pages.add_metric((group.name, "cached"), group.cached)
            pages.add_metric((group.name, "held"), group.held)
        yield pages
        yield GaugeMetricFamily("octavo_kv_pages_capacity", "KV pages in the pool.", value=total)
        yield GaugeMetricFamily("octavo_kv_capacity_bytes", "Bytes of KV memory in the pool.", value=total * page_bytes)
        used = sum(group.bytes_held for group in groups)
        yield GaugeMetricFamily("octavo_kv_used_bytes", "Bytes of KV memory that requests hold.", value=used)
        ratio = held / total if total else 0.0
        yield GaugeMetricFamily("octavo_kv_usage_ratio", "Share of the pages that requests hold, 0 to 1.", value=ratio)

    def _queue_gauges(self, stats: EngineStats | None) -> Iterator[Metric]:
        up = self._client.state is EngineState.READY
        running, waiting = (0, 0) if stats is None else (stats.running, stats.waiting)
        yield GaugeMetricFamily("octavo_engine_up", "1 while the engine serves.", value=float(up))
        yield GaugeMetricFamily("octavo_requests_running", "Requests that hold pages.", value=running)
        yield GaugeMetricFamily("octavo_requests_waiting", "Requests that wait for pages.", value=waiting)
        in_flight = self._client.num_in_flight
        yield GaugeMetricFamily("octavo_requests_in_flight", "Requests submitted and not finished.", value=in_flight)


class Metrics:
    """All metrics of one server. A request here is one sequence: a completion with three prompts is three."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._registry = CollectorRegistry()
        self._engine_counters = EngineCounters()
        self._registry.register(EngineCollector(client, self._engine_counters))
        outcomes = Counter(
            "octavo_requests",
            "Requests ended, by outcome: stop, length, abort (the client left) or error.",
            ("outcome",),
            registry=self._registry,
        )
        self._outcomes = {reason: outcomes.labels(reason.value) for reason in FinishReason}
        self._ttft = self._histogram(
            "time_to_first_token", "Seconds from arrival at the API to the first token.", TTFT_BUCKETS
        )
        self._itl = self._histogram("inter_token_latency", "Seconds between two tokens of one request.", ITL_BUCKETS)
        self._e2e = self._histogram(
            "e2e_request_latency", "Seconds from arrival to an end by stop or length.", E2E_BUCKETS
        )

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"octavo_{name}_seconds", what, registry=self._registry, buckets=buckets)

    def observe_first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def observe_tokens(self, seconds: float, num_tokens: int) -> None:
        """``num_tokens`` more tokens came ``seconds`` after the one before: as many equal intervals."""
        for _ in range(num_tokens):
            self._itl.observe(seconds / num_tokens)

    def count_outcome(self, outcome: FinishReason, seconds: float) -> None:
        """A request ended ``seconds`` after it arrived. Call exactly once for each."""
        self._outcomes[outcome].inc()
        if outcome in (FinishReason.STOP, FinishReason.LENGTH):
            self._e2e.observe(seconds)
        self._engine_counters.update(self._client.ready, self._client.stats)

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return generate_latest(self._registry)
