"""Prometheus metrics of one server, all named ``octavo_*``, in a registry of their own.

What the API process sees (outcomes, latencies) is counted here as it happens; for what the engine knows see
`server.metrics.engine_metrics`. Invariants: every series exists from the first scrape on, with 0; labels come from
fixed sets, never from a request; and of requests

    submitted = ended, by outcome + refused because the queue was full + in flight

so that a request which was never accepted is no failure of one that was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import Metric

from engine.client import EngineClient, EngineError
from scheduler.request import FinishReason
from server.metrics.engine_metrics import EngineCollector, EngineCounters
from server.metrics.latency_histogram import LatencyHistogram

STATS_SECONDS = 1.0  # that a scrape waits for the engine to say how things are; it says so between two steps
QUEUE_FULL = "queue_full"
REFUSAL_REASONS = (QUEUE_FULL, "queue_timeout", "timeout")  # codes of a Failure that the scheduler decided on

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


class _Registry(CollectorRegistry):
    """A registry whose families have no ``_created`` series, which double a page and say nothing anybody asks for.

    prometheus-client can leave them out only for the whole process, and this module has no global state.
    """

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class Metrics:
    """All metrics of one server. A request here is one sequence: a completion with three prompts is three."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._registry = _Registry()
        self._engine_counters = EngineCounters()
        self._registry.register(EngineCollector(client, self._engine_counters))
        self._submitted = Counter(
            "octavo_requests_submitted",
            "Requests sent to the engine: accepted ones, and those refused because the queue was full.",
            registry=self._registry,
        )
        refusals = Counter(
            "octavo_refusals",
            "Requests the scheduler ended: queue_full ones were never accepted; the others have the outcome error too.",
            ("reason",),
            registry=self._registry,
        )
        self._refusals = {reason: refusals.labels(reason) for reason in REFUSAL_REASONS}
        outcomes = Counter(
            "octavo_requests",
            "Accepted requests ended, by outcome: stop, length, abort (the client left) or error.",
            ("outcome",),
            registry=self._registry,
        )
        self._outcomes = {reason: outcomes.labels(reason.value) for reason in FinishReason}
        self._ttft = LatencyHistogram(
            "octavo_time_to_first_token_seconds", "Seconds from arrival at the API to the first token.", TTFT_BUCKETS
        )
        self._itl = LatencyHistogram(
            "octavo_inter_token_latency_seconds", "Seconds between two tokens of one request.", ITL_BUCKETS
        )
        self._e2e = LatencyHistogram(
            "octavo_e2e_request_latency_seconds", "Seconds from arrival to an end by stop or length.", E2E_BUCKETS
        )
        for histogram in (self._ttft, self._itl, self._e2e):
            self._registry.register(histogram)

    def count_submitted(self) -> None:
        """A request goes to the engine. Call exactly once for each, before its end."""
        self._submitted.inc()

    def observe_first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def observe_tokens(self, seconds: float, num_tokens: int) -> None:
        """``num_tokens`` more tokens came ``seconds`` after the one before: as many equal intervals."""
        self._itl.observe(seconds / num_tokens, num_tokens)

    def count_outcome(self, outcome: FinishReason, seconds: float) -> None:
        """An accepted request ended ``seconds`` after it arrived. Call exactly once for each."""
        self._outcomes[outcome].inc()
        if outcome in (FinishReason.STOP, FinishReason.LENGTH):
            self._e2e.observe(seconds)
        self._engine_counters.update(self._client.ready, self._client.stats)

    def count_failure(self, code: str) -> None:
        """The engine ended a request with this code; it counts here if it is that of a refusal."""
        if code in self._refusals:
            self._refusals[code].inc()

    async def scrape(self) -> bytes:
        """The text exposition format, version 0.0.4: the engine as it is now or, if it does not say, as last seen."""
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(STATS_SECONDS):
                await self._client.read_stats()
        return generate_latest(self._registry)
