"""Recording rules: the ratios and quantiles that alerts ask for, worked out once and kept cheaply for long.

``instance:`` rules keep every label that Prometheus gave the server; ``service:`` rules add up the servers of a job.
"""

from __future__ import annotations

from server.metrics.catalogue import (
    E2E,
    GENERATION_TOKENS,
    HTTP_RESPONSES,
    ITL,
    PREEMPTIONS,
    PREFIX_CACHE_QUERIES,
    REFUSALS,
    REQUESTS_SUBMITTED,
    REQUESTS_WAITING,
    TTFT,
)
from server.monitoring.objectives import ITL_OBJECTIVE, TTFT_OBJECTIVE, Objective
from server.monitoring.promql import Level, Scope, ratio
from server.monitoring.rules.rule import RecordingRule, RuleGroup
from server.monitoring.shares import available_pages, failed_requests, prefix_hits, recomputed_tokens, wasted_slots

INSTANCE = Scope(Level.INSTANCE, "5m")
SERVICE = Scope(Level.SERVICE, "5m")
API_ROUTES = "/v1/.*"  # probes are answered 503 while a model loads, and are no user's
BURN_WINDOWS = ("5m", "30m", "1h", "6h")

REQUESTS_WAITING_SUM = RecordingRule("instance:octavo_requests_waiting:sum", INSTANCE.total(REQUESTS_WAITING))
KV_AVAILABLE_RATIO = RecordingRule("instance:octavo_kv_available_pages:ratio", available_pages(INSTANCE))
KV_WASTED_RATIO = RecordingRule("instance:octavo_kv_wasted_slots:ratio", wasted_slots(INSTANCE))
RECOMPUTED_RATIO = RecordingRule("instance:octavo_recomputed_tokens:ratio_rate5m", recomputed_tokens(INSTANCE))
PREEMPTIONS_RATE = RecordingRule("instance:octavo_preemptions:rate5m", INSTANCE.total_rate(PREEMPTIONS))

GENERATION_RATE = RecordingRule("service:octavo_generation_tokens:rate5m", SERVICE.total_rate(GENERATION_TOKENS))
REFUSED_RATIO = RecordingRule(
    "service:octavo_requests_refused:ratio_rate5m",
    ratio(SERVICE.total_rate(REFUSALS, reason="queue_full"), SERVICE.total_rate(REQUESTS_SUBMITTED)),
)
ERROR_RATIO = RecordingRule("service:octavo_requests_error:ratio_rate5m", failed_requests(SERVICE))
HTTP_5XX_RATIO = RecordingRule(
    "service:octavo_http_responses_5xx:ratio_rate5m",
    ratio(
        SERVICE.total_rate(HTTP_RESPONSES, route=API_ROUTES, status="5.."),
        SERVICE.total_rate(HTTP_RESPONSES, route=API_ROUTES),
    ),
)


def hit_ratio(window: str) -> RecordingRule:
    return RecordingRule(f"service:octavo_prefix_cache_hits:ratio_rate{window}", prefix_hits(SERVICE.over(window)))


HIT_RATIO_NOW, HIT_RATIO_BEFORE = hit_ratio("30m"), hit_ratio("1d")
PREFIX_QUERY_RATE = RecordingRule(
    "service:octavo_prefix_cache_queries_tokens:rate30m", SERVICE.over("30m").total_rate(PREFIX_CACHE_QUERIES)
)

QUANTILES = tuple(
    RecordingRule(f"service:{spec.name}:quantile_rate5m", SERVICE.quantile(value, spec), {"quantile": f"{value:g}"})
    for spec in (TTFT, ITL, E2E)
    for value in (0.5, 0.9, 0.99)
)


def slow_ratio(objective: Objective, window: str) -> RecordingRule:
    """The share slower than the objective, over one window."""
    promql = SERVICE.over(window).share_above(objective.histogram, objective.seconds)
    return RecordingRule(f"service:{objective.histogram.name}:slow_ratio_rate{window}", promql)


SLOW_RATIOS = tuple(
    slow_ratio(objective, window) for objective in (TTFT_OBJECTIVE, ITL_OBJECTIVE) for window in BURN_WINDOWS
)

RECORDING_GROUPS = (
    RuleGroup(
        "octavo-instances",
        "15s",
        (REQUESTS_WAITING_SUM, KV_AVAILABLE_RATIO, KV_WASTED_RATIO, RECOMPUTED_RATIO, PREEMPTIONS_RATE),
    ),
    RuleGroup("octavo-services", "15s", (GENERATION_RATE, REFUSED_RATIO, ERROR_RATIO, HTTP_5XX_RATIO, *QUANTILES)),
    RuleGroup("octavo-prefix-cache", "1m", (HIT_RATIO_NOW, HIT_RATIO_BEFORE, PREFIX_QUERY_RATE)),
    RuleGroup("octavo-objectives", "30s", SLOW_RATIOS),
)
