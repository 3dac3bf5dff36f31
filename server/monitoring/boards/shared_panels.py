"""Panels that are on more than one board, so that they look alike there."""

from __future__ import annotations

from server.metrics.catalogue import (
    KV_PAGES,
    KV_USAGE_RATIO,
    PREEMPTIONS,
    PREFIX_CACHE_HITS,
    REFUSALS,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    TTFT,
)
from server.monitoring import palette
from server.monitoring.dashboard_json import BOARD
from server.monitoring.objectives import TTFT_OBJECTIVE
from server.monitoring.panel import Panel, Query, Stacking, Threshold, Unit, number
from server.monitoring.shares import prefix_hits

KV_USAGE = number(
    "KV pages held",
    Unit.SHARE,
    KV_USAGE_RATIO,
    "The fullest server is shown; near 1, new requests wait and running ones are preempted.",
    BOARD.highest(KV_USAGE_RATIO),
    thresholds=(Threshold(0.8, palette.WARN), Threshold(0.95, palette.BAD)),
)

RUNNING = number(
    "Running",
    Unit.COUNT,
    REQUESTS_RUNNING,
    "As many as --max-num-seqs a server is the most there can be.",
    BOARD.total(REQUESTS_RUNNING),
    base=palette.CALM,
)

WAITING = number(
    "Waiting",
    Unit.COUNT,
    REQUESTS_WAITING,
    "A queue that does not empty means that more comes than can be computed.",
    BOARD.total(REQUESTS_WAITING),
    thresholds=(Threshold(1, palette.WARN), Threshold(100, palette.BAD)),
)

HIT_RATIO = number(
    "Prefix hit ratio",
    Unit.SHARE,
    PREFIX_CACHE_HITS,
    "The share of looked-up prompt tokens that need not be computed: what the cache is worth.",
    prefix_hits(BOARD),
    base=palette.CALM,
)

TTFT_P99 = number(
    "TTFT p99",
    Unit.SECONDS,
    TTFT,
    f"What the unluckiest users wait for a first word; the objective is {TTFT_OBJECTIVE.words}.",
    BOARD.quantile(0.99, TTFT),
    thresholds=(Threshold(TTFT_OBJECTIVE.seconds, palette.WARN), Threshold(5 * TTFT_OBJECTIVE.seconds, palette.BAD)),
)

PAGES_BY_STATE = Panel(
    title="Pages by state",
    unit=Unit.PAGES,
    about=KV_PAGES,
    why="Held pages are needed now and cached ones may be evicted; with neither free nor cached ones, all wait.",
    queries=(Query(BOARD.total(KV_PAGES, "state"), "{{state}}"),),
    width=12,
    stacking=Stacking.NORMAL,
    colors=palette.PAGE_STATES,
)

WAITING_BY_REASON = Panel(
    title="Waiting, by reason",
    unit=Unit.COUNT,
    about=REQUESTS_WAITING,
    why="Pages: memory is short. Sequences: --max-num-seqs is reached. Tokens: prompts are longer than steps.",
    queries=(Query(BOARD.total(REQUESTS_WAITING, "reason"), "{{reason}}"),),
    width=12,
    stacking=Stacking.NORMAL,
    colors=palette.WAIT_REASONS,
)

PREEMPTIONS_BY_KIND = Panel(
    title="Preemptions, by kind and cause",
    unit=Unit.PER_SECOND,
    about=PREEMPTIONS,
    why="A few are the price of full memory; many mean that work is done twice: see the recomputed tokens.",
    queries=(Query(BOARD.total_rate(PREEMPTIONS, "kind", "cause"), "{{kind}} for {{cause}}"),),
    width=12,
    stacking=Stacking.NORMAL,
    colors={"/^recompute/": "red", "/^swap/": "purple"},
)

REFUSALS_BY_REASON = Panel(
    title="Refusals, by reason",
    unit=Unit.REQUESTS_PER_SECOND,
    about=REFUSALS,
    why="queue_full are answers 429 with a Retry-After: clients are sent away although they did nothing wrong.",
    queries=(Query(BOARD.total_rate(REFUSALS, "reason"), "{{reason}}"),),
    width=12,
    stacking=Stacking.NORMAL,
    colors=palette.REFUSALS,
)
