"""The part of /metrics that the engine knows: pages, queues and its counters, from the stats of the client.

Invariants: counters never go back, not even when a new engine process starts its own at 0; every series exists from
the first scrape on, with 0, except those of a layer group, which exist once the engine has told its groups; labels
come from fixed sets, never from a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.client import EngineClient, EngineState
from engine.messages import EngineReady, EngineStats, GroupUsage
from scheduler.request import WaitReason

# Counters of EngineStats: field, metric, help.
ENGINE_COUNTERS = (
    ("overtakes", "octavo_overtakes", "Requests that started before an older one for which too few pages were free."),
    ("rotations", "octavo_rotations", "Times a request at the end of the context dropped its middle and went on."),
    ("prompt_tokens", "octavo_prompt_tokens", "Prompt tokens of admitted requests, cached ones included."),
    ("recomputed_tokens", "octavo_recomputed_tokens", "Tokens computed once more after a preemption."),
    ("generation_tokens", "octavo_generation_tokens", "Tokens generated."),
    ("drafts", "octavo_spec_drafts", "Steps of a request in which tokens were guessed (--speculative)."),
    ("draft_tokens", "octavo_spec_draft_tokens", "Tokens that were guessed and computed on the chance."),
    ("accepted_draft_tokens", "octavo_spec_accepted_tokens", "Guessed tokens that stood."),
    ("page_seconds", "octavo_page_seconds", "KV pages times seconds that ended requests held them."),
    ("steps", "octavo_steps", "Steps the engine ran."),
    ("step_seconds", "octavo_step_seconds", "Seconds the engine spent in steps."),
    ("audit_failures", "octavo_audit_failures", "Audits that found a page not accounted for."),
    ("cached_prompt_tokens", "octavo_prefix_cache_hits_tokens", "Prompt tokens read from cached pages, not computed."),
)
# Why prompt tokens were not found in the prefix cache: the keys of EngineStats.missed_prompt_tokens.
DISABLED = "disabled"
MISS_REASONS = ("too_short", "never_seen", "evicted", "salt", DISABLED)

# Why a waiting request did not start in the latest step: the keys of EngineStats.waiting_by_reason.
WAIT_REASONS = tuple(reason.value for reason in WaitReason)
# How pages were taken from a request, and what for: the labels of EngineStats.preemptions.
PREEMPTION_KINDS = ("recompute", "swap")
PREEMPTION_CAUSES = ("prefill", "decode")

Key = tuple[str, ...]  # field of EngineStats, and the values of its labels


class EngineCounters:
    """The engine's counters, summed over the engine processes of this server's life.

    A new engine process is known by its new EngineReady; the last counts seen of the one before are then kept as an
    offset. Call ``update`` whenever a request ends, so that what the old process did is seen before it is gone.
    """

    def __init__(self) -> None:
        self._ready: EngineReady | None = None
        self._seen: dict[Key, float] = {}
        self._offset: dict[Key, float] = {}

    def update(self, ready: EngineReady | None, stats: EngineStats | None) -> None:
        if ready is None or stats is None:
            return
        if ready is not self._ready:
            self._ready = ready
            for key, seen in self._seen.items():
                self._offset[key] = self._offset.get(key, 0.0) + seen
        self._seen = _counts(stats)

    def total(self, field: str, *labels: str) -> float:
        return self._offset.get((field, *labels), 0.0) + self._seen.get((field, *labels), 0.0)


def _counts(stats: EngineStats) -> dict[Key, float]:
    counts: dict[Key, float] = {(field,): float(getattr(stats, field)) for field, _, _ in ENGINE_COUNTERS}
    counts |= {("preemptions", one.kind, one.cause): float(one.count) for one in stats.preemptions}
    counts |= {("missed", reason): float(number) for reason, number in stats.missed_prompt_tokens.items()}
    counts |= {("evicted", group.name): float(group.evicted) for group in stats.groups}
    return counts


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
        groups = [] if stats is None else stats.groups
        self._counters.update(self._client.ready, stats)
        yield from _pool_gauges(stats)
        yield from _group_gauges(groups)
        yield _host_pages(stats)
        yield from self._queue_gauges(stats)
        for field, name, documentation in ENGINE_COUNTERS:
            yield CounterMetricFamily(name, documentation, value=self._counters.total(field))
        yield self._preemptions()
        yield from self._prefix_cache_counters()
        evicted = CounterMetricFamily(
            "octavo_kv_evicted_pages", "Cached pages that were taken for other tokens.", labels=("group",)
        )
        for group in groups:
            evicted.add_metric((group.name,), self._counters.total("evicted", group.name))
        yield evicted

    def _preemptions(self) -> Metric:
        preemptions = CounterMetricFamily(
            "octavo_preemptions",
            "Times a request gave its pages back, to go on later: kind says how, cause what they were taken for.",
            labels=("kind", "cause"),
        )
        for labels in product(PREEMPTION_KINDS, PREEMPTION_CAUSES):
            preemptions.add_metric(labels, self._counters.total("preemptions", *labels))
        return preemptions

    def _prefix_cache_counters(self) -> Iterator[Metric]:
        missed = CounterMetricFamily(
            "octavo_prefix_cache_missed_tokens",
            "Prompt tokens that had to be computed at first admission, by the reason they were not cached.",
            labels=("reason",),
        )
        for reason in MISS_REASONS:
            missed.add_metric((reason,), self._counters.total("missed", reason))
        yield missed
        queries = self._counters.total("prompt_tokens") - self._counters.total("missed", DISABLED)
        yield CounterMetricFamily(
            "octavo_prefix_cache_queries_tokens", "Prompt tokens looked up in the prefix cache.", value=queries
        )

    def _queue_gauges(self, stats: EngineStats | None) -> Iterator[Metric]:
        up = self._client.state is EngineState.READY
        yield GaugeMetricFamily("octavo_engine_up", "1 while the engine serves.", value=float(up))
        running = 0 if stats is None else stats.running
        yield GaugeMetricFamily("octavo_requests_running", "Requests that hold pages.", value=running)
        waiting = GaugeMetricFamily(
            "octavo_requests_waiting",
            "Requests that wait to start or, preempted, to go on, by why they did not in the latest step.",
            labels=("reason",),
        )
        for reason in WAIT_REASONS:
            waiting.add_metric((reason,), 0 if stats is None else stats.waiting_by_reason.get(reason, 0))
        yield waiting
        queued = 0 if stats is None else stats.queued_tokens
        yield GaugeMetricFamily("octavo_queued_tokens", "Tokens that waiting requests have to compute.", value=queued)
        longest = 0.0 if stats is None else stats.longest_wait_seconds
        yield GaugeMetricFamily(
            "octavo_longest_wait_seconds", "Seconds since the oldest waiting request arrived.", value=longest
        )
        in_flight = self._client.num_in_flight
        yield GaugeMetricFamily("octavo_requests_in_flight", "Requests submitted and not finished.", value=in_flight)


def _pool_gauges(stats: EngineStats | None) -> Iterator[Metric]:
    pages = GaugeMetricFamily(
        "octavo_kv_pages",
        "KV pages by state and layer group; free pages belong to the pool. The sum is octavo_kv_pages_capacity.",
        labels=("group", "state"),
    )
    sizes = GaugeMetricFamily(
        "octavo_kv_bytes", "Bytes of KV pages by state and layer group, as octavo_kv_pages.", labels=("group", "state")
    )
    groups = [] if stats is None else stats.groups
    total = 0 if stats is None else stats.pages_total
    page_bytes = 0 if stats is None else stats.page_bytes
    held = sum(group.held for group in groups)
    states = [("pool", "free", 0 if stats is None else stats.pages_free)]
    states += [(group.name, "cached", group.cached) for group in groups]
    states += [(group.name, "held", group.held) for group in groups]
    for name, state, count in states:
        pages.add_metric((name, state), count)
        sizes.add_metric((name, state), count * page_bytes)
    yield pages
    yield sizes
    yield GaugeMetricFamily("octavo_kv_pages_capacity", "KV pages in the pool.", value=total)
    yield GaugeMetricFamily("octavo_kv_capacity_bytes", "Bytes of KV memory in the pool.", value=total * page_bytes)
    used = sum(group.bytes_held for group in groups)
    yield GaugeMetricFamily("octavo_kv_used_bytes", "Bytes of KV memory that requests hold.", value=used)
    yield GaugeMetricFamily(
        "octavo_kv_usage_ratio", "Share of the pages that requests hold, 0 to 1.", value=_ratio(held, total)
    )
    oldest = 0.0 if stats is None else stats.oldest_cached_seconds
    yield GaugeMetricFamily(
        "octavo_kv_oldest_cached_seconds", "Seconds since the cached page that goes next was last used.", value=oldest
    )


def _group_gauges(groups: list[GroupUsage]) -> Iterator[Metric]:
    shared = GaugeMetricFamily(
        "octavo_kv_shared_pages", "Held KV pages that more than one sequence holds.", labels=("group",)
    )
    held = GaugeMetricFamily("octavo_kv_held_slots", "Token slots in held KV pages.", labels=("group",))
    wasted = GaugeMetricFamily(
        "octavo_kv_wasted_slots", "Token slots in held KV pages that have no token yet.", labels=("group",)
    )
    ratio = GaugeMetricFamily(
        "octavo_kv_wasted_slots_ratio", "Share of the slots in held KV pages without a token.", labels=("group",)
    )
    for group in groups:
        shared.add_metric((group.name,), group.shared)
        held.add_metric((group.name,), group.held_slots)
        wasted.add_metric((group.name,), group.wasted_slots)
        ratio.add_metric((group.name,), _ratio(group.wasted_slots, group.held_slots))
    yield from (shared, held, wasted, ratio)


def _host_pages(stats: EngineStats | None) -> Metric:
    pages = GaugeMetricFamily(
        "octavo_host_pages",
        "Pages of host memory: free, with an evicted prefix, or with a request that was swapped out.",
        labels=("state",),
    )
    total, free, swapped = (
        (0, 0, 0) if stats is None else (stats.host_pages_total, stats.host_pages_free, stats.host_pages_swapped)
    )
    for state, number in (("free", free), ("prefix", total - free - swapped), ("swapped", swapped)):
        pages.add_metric((state,), number)
    return pages


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
