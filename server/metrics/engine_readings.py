"""What each metric of the catalogue that the engine knows reads from an EngineStats.

Invariant: what is read of one EngineStats was true at one moment, between two steps, so that sums hold exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from engine.histogram import Histogram
from engine.messages import EngineStats, GroupUsage
from scheduler.request import WaitReason
from server.metrics import catalogue
from server.metrics.family import Rows
from server.metrics.metric_spec import MetricSpec
from server.tenant import NO_TENANT

Read = Callable[[EngineStats], Rows]

# Before the engine has said anything.
NO_STATS = EngineStats(
    pages_total=0,
    pages_free=0,
    page_bytes=0,
    groups=[],
    oldest_cached_seconds=0.0,
    host_pages_total=0,
    host_pages_free=0,
    host_pages_swapped=0,
    running=0,
    waiting=0,
    waiting_by_reason={},
    wanted_pages=0,
    exhaustion_seconds=None,
    queued_tokens=0,
    longest_wait_seconds=0.0,
    preemptions=[],
    refusals={},
    overtakes=0,
    rotations=0,
    prompt_tokens=0,
    cached_prompt_tokens=0,
    missed_prompt_tokens={},
    recomputed_tokens=0,
    generation_tokens=0,
    drafts=0,
    draft_tokens=0,
    accepted_draft_tokens=0,
    page_seconds=0.0,
    tenant_page_seconds={},
    steps=0,
    step_seconds=0.0,
    step_part_seconds={},
    step_durations=Histogram.empty(catalogue.STEP_DURATION.buckets),
    step_tokens=Histogram.empty(catalogue.STEP_TOKENS.buckets),
    step_sequences=Histogram.empty(catalogue.STEP_SEQUENCES.buckets),
    audit_failures=0,
)


def tenant_label(tenant: str) -> str:
    """What a tenant is called in a label, which must not be empty."""
    return catalogue.NO_KEYS if tenant == NO_TENANT else tenant


def _value(read: Callable[[EngineStats], float]) -> Read:
    return lambda stats: [((), read(stats))]


def _by_group(read: Callable[[GroupUsage], float]) -> Read:
    return lambda stats: [((group.name,), read(group)) for group in stats.groups]


def _pages(stats: EngineStats) -> Iterator[tuple[tuple[str, ...], int]]:
    yield ("pool", "free"), stats.pages_free
    for group in stats.groups:
        yield (group.name, "cached"), group.cached
        yield (group.name, "held"), group.held


def _held(stats: EngineStats) -> int:
    return sum(group.held for group in stats.groups)


def _cached(stats: EngineStats) -> int:
    return sum(group.cached for group in stats.groups)


def _wasted_bytes(stats: EngineStats) -> Rows:
    """A page's bytes are shared out among its slots."""
    return [((group.name,), group.bytes_held * _ratio(group.wasted_slots, group.held_slots)) for group in stats.groups]


def _host_pages(stats: EngineStats) -> list[tuple[tuple[str, ...], int]]:
    prefix = stats.host_pages_total - stats.host_pages_free - stats.host_pages_swapped
    return [(("free",), stats.host_pages_free), (("prefix",), prefix), (("swapped",), stats.host_pages_swapped)]


def _waiting(stats: EngineStats) -> Rows:
    return [((reason,), stats.waiting_by_reason.get(reason, 0)) for reason in WaitReason]


def _adapter_requests(stats: EngineStats) -> Iterator[tuple[tuple[str, ...], int]]:
    for one in stats.adapter_requests:
        yield (one.name, "running"), one.running
        yield (one.name, "waiting"), one.waiting


def _exhaustion(stats: EngineStats) -> float:
    return math.inf if stats.exhaustion_seconds is None else stats.exhaustion_seconds


def _by_source(stats: EngineStats) -> Rows:
    cached = stats.cached_prompt_tokens
    return [(("computed",), stats.prompt_tokens - cached), (("cached",), cached)]


def _looked_up(stats: EngineStats) -> int:
    return stats.prompt_tokens - stats.missed_prompt_tokens.get(catalogue.DISABLED, 0)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


GAUGES: tuple[tuple[MetricSpec, Read], ...] = (
    (catalogue.KV_PAGES, _pages),
    (catalogue.KV_BYTES, lambda stats: [(labels, count * stats.page_bytes) for labels, count in _pages(stats)]),
    (catalogue.KV_PAGES_CAPACITY, _value(lambda stats: stats.pages_total)),
    (catalogue.KV_CAPACITY_BYTES, _value(lambda stats: stats.pages_total * stats.page_bytes)),
    (catalogue.KV_USED_BYTES, _value(lambda stats: sum(group.bytes_held for group in stats.groups))),
    (catalogue.KV_USED_PAGES, _value(_held)),
    (catalogue.KV_EVICTABLE_PAGES, _value(_cached)),
    (catalogue.KV_AVAILABLE_PAGES, _value(lambda stats: stats.pages_free + _cached(stats))),
    (catalogue.KV_USAGE_RATIO, _value(lambda stats: _ratio(_held(stats), stats.pages_total))),
    (catalogue.KV_SHARED_PAGES, _by_group(lambda group: group.shared)),
    (catalogue.KV_HELD_SLOTS, _by_group(lambda group: group.held_slots)),
    (catalogue.KV_WASTED_SLOTS, _by_group(lambda group: group.wasted_slots)),
    (catalogue.KV_WASTED_SLOTS_RATIO, _by_group(lambda group: _ratio(group.wasted_slots, group.held_slots))),
    (catalogue.KV_WASTED_BYTES, _wasted_bytes),
    (catalogue.KV_OLDEST_CACHED_SECONDS, _value(lambda stats: stats.oldest_cached_seconds)),
    (catalogue.KV_WANTED_PAGES, _value(lambda stats: stats.wanted_pages)),
    (catalogue.KV_EXHAUSTION_SECONDS, _value(_exhaustion)),
    (catalogue.HOST_PAGES, _host_pages),
    (catalogue.HOST_BYTES, lambda stats: [(labels, count * stats.page_bytes) for labels, count in _host_pages(stats)]),
    (catalogue.REQUESTS_RUNNING, _value(lambda stats: stats.running)),
    (catalogue.REQUESTS_WAITING, _waiting),
    (catalogue.QUEUED_TOKENS, _value(lambda stats: stats.queued_tokens)),
    (catalogue.LONGEST_WAIT_SECONDS, _value(lambda stats: stats.longest_wait_seconds)),
    (catalogue.ADAPTER_REQUESTS, _adapter_requests),
)

COUNTERS: tuple[tuple[MetricSpec, Read], ...] = (
    (catalogue.KV_EVICTED_PAGES, _by_group(lambda group: group.evicted)),
    (catalogue.PAGE_SECONDS, _value(lambda stats: stats.page_seconds)),
    (
        catalogue.TENANT_PAGE_SECONDS,
        lambda stats: [((tenant_label(name),), seconds) for name, seconds in stats.tenant_page_seconds.items()],
    ),
    (catalogue.AUDIT_FAILURES, _value(lambda stats: stats.audit_failures)),
    (catalogue.PREFIX_CACHE_QUERIES, _value(_looked_up)),
    (catalogue.PREFIX_CACHE_HITS, _value(lambda stats: stats.cached_prompt_tokens)),
    (
        catalogue.PREFIX_CACHE_MISSED,
        lambda stats: [((reason,), tokens) for reason, tokens in stats.missed_prompt_tokens.items()],
    ),
    (catalogue.PREEMPTIONS, lambda stats: [((one.kind, one.cause), one.count) for one in stats.preemptions]),
    (catalogue.OVERTAKES, _value(lambda stats: stats.overtakes)),
    (catalogue.ROTATIONS, _value(lambda stats: stats.rotations)),
    (catalogue.PROMPT_TOKENS, _value(lambda stats: stats.prompt_tokens)),
    (catalogue.PROMPT_TOKENS_BY_SOURCE, _by_source),
    (catalogue.RECOMPUTED_TOKENS, _value(lambda stats: stats.recomputed_tokens)),
    (catalogue.GENERATION_TOKENS, _value(lambda stats: stats.generation_tokens)),
    (catalogue.SPEC_DRAFTS, _value(lambda stats: stats.drafts)),
    (catalogue.SPEC_DRAFT_TOKENS, _value(lambda stats: stats.draft_tokens)),
    (catalogue.SPEC_ACCEPTED_TOKENS, _value(lambda stats: stats.accepted_draft_tokens)),
    (catalogue.STEPS, _value(lambda stats: stats.steps)),
    (catalogue.STEP_SECONDS, _value(lambda stats: stats.step_seconds)),
    (catalogue.STEP_PART_SECONDS, lambda stats: [((part,), took) for part, took in stats.step_part_seconds.items()]),
)

HISTOGRAMS: tuple[tuple[MetricSpec, Callable[[EngineStats], Histogram]], ...] = (
    (catalogue.STEP_DURATION, lambda stats: stats.step_durations),
    (catalogue.STEP_TOKENS, lambda stats: stats.step_tokens),
    (catalogue.STEP_SEQUENCES, lambda stats: stats.step_sequences),
)
