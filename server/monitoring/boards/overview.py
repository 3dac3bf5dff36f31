"""The overview: is it well, and if not, where to look."""

from __future__ import annotations

from server.metrics.catalogue import (
    BUILD_INFO,
    CACHE_CONFIG_INFO,
    E2E,
    ENGINE_RESTARTS,
    ENGINE_UP,
    GENERATION_TOKENS,
    HTTP_RESPONSES,
    ITL,
    MODEL_INFO,
    PROMPT_TOKENS_BY_SOURCE,
    REQUESTS,
    REQUESTS_IN_FLIGHT,
    TTFT,
)
from server.monitoring import palette
from server.monitoring.boards.shared_panels import (
    HIT_RATIO,
    KV_USAGE,
    PAGES_BY_STATE,
    PREEMPTIONS_BY_KIND,
    REFUSALS_BY_REASON,
    RUNNING,
    TTFT_P99,
    WAITING,
    WAITING_BY_REASON,
)
from server.monitoring.dashboard import Dashboard, Row
from server.monitoring.dashboard_json import BOARD
from server.monitoring.panel import Kind, Panel, Query, Stacking, Threshold, Unit, number, quantiles
from server.monitoring.process_metrics import (
    PROCESS_CPU_SECONDS,
    PROCESS_MAX_FDS,
    PROCESS_OPEN_FDS,
    PROCESS_RESIDENT_BYTES,
    PROCESS_START_SECONDS,
)
from server.monitoring.promql import ratio
from server.monitoring.shares import failed_requests

NOW = Row(
    "Now",
    (
        number(
            "Engines serving",
            Unit.COUNT,
            ENGINE_UP,
            "Fewer than there are servers: one is starting, restarting or has failed.",
            BOARD.total(ENGINE_UP),
            base=palette.BAD,
            thresholds=(Threshold(1, palette.GOOD),),
        ),
        RUNNING,
        WAITING,
        KV_USAGE,
        number(
            "Output",
            Unit.TOKENS_PER_SECOND,
            GENERATION_TOKENS,
            "What all users together get out of it.",
            BOARD.total_rate(GENERATION_TOKENS),
            base=palette.CALM,
        ),
        TTFT_P99,
        HIT_RATIO,
        number(
            "Errors",
            Unit.SHARE,
            REQUESTS,
            "The share of ended requests that ended by an error, which is a fault of the server or a time limit.",
            failed_requests(BOARD),
            thresholds=(Threshold(0.01, palette.WARN), Threshold(0.05, palette.BAD)),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            title="Requests ended, by outcome",
            unit=Unit.REQUESTS_PER_SECOND,
            about=REQUESTS,
            why="Many aborts are clients that lost patience; errors want a look into the log.",
            queries=(Query(BOARD.total_rate(REQUESTS, "outcome"), "{{outcome}}"),),
            stacking=Stacking.NORMAL,
            colors=palette.OUTCOMES,
        ),
        Panel(
            title="HTTP answers, by status",
            unit=Unit.REQUESTS_PER_SECOND,
            about=HTTP_RESPONSES,
            why="What clients and load balancers see: 429 is a full queue, 503 an engine that is away.",
            queries=(Query(BOARD.total_rate(HTTP_RESPONSES, "status"), "{{status}}"),),
            stacking=Stacking.NORMAL,
            colors={"/^2/": "green", "/^4/": "yellow", "429": "orange", "/^5/": "red"},
        ),
        Panel(
            title="HTTP answers, by route",
            unit=Unit.REQUESTS_PER_SECOND,
            about=HTTP_RESPONSES,
            why="Which of the APIs is in use, probes and scrapes included.",
            queries=(Query(BOARD.total_rate(HTTP_RESPONSES, "route"), "{{route}}"),),
            stacking=Stacking.NORMAL,
        ),
        Panel(
            title="Tokens, by where they come from",
            unit=Unit.TOKENS_PER_SECOND,
            about=PROMPT_TOKENS_BY_SOURCE,
            why="Prompt tokens from cached pages cost next to nothing; generated ones cost a step each.",
            queries=(
                Query(BOARD.total_rate(PROMPT_TOKENS_BY_SOURCE, "source"), "prompt, {{source}}"),
                Query(BOARD.total_rate(GENERATION_TOKENS), "generated"),
            ),
            width=12,
            stacking=Stacking.NORMAL,
            colors={"prompt, computed": "orange", "prompt, cached": "blue", "generated": "green"},
        ),
        REFUSALS_BY_REASON,
    ),
)

PRESSURE = Row("Memory and queue", (PAGES_BY_STATE, WAITING_BY_REASON, PREEMPTIONS_BY_KIND, Panel(
    title="Requests in flight, by server",
    unit=Unit.COUNT,
    about=REQUESTS_IN_FLIGHT,
    why="Servers behind one balancer should carry alike; one that stands out is favoured, or stuck.",
    queries=(Query(BOARD.gauge(REQUESTS_IN_FLIGHT), "{{instance}}"),),
    width=12,
)))  # fmt: skip

LATENCIES = Row(
    "What users feel",
    (
        quantiles("Time to first token", Unit.SECONDS, TTFT, "The wait before anything appears.", BOARD, 8),
        quantiles("Between two tokens", Unit.SECONDS, ITL, "How fluently text appears.", BOARD, 8),
        quantiles("Whole answers", Unit.SECONDS, E2E, "Grows with the length of answers, too.", BOARD, 8),
    ),
)

SERVERS = Row(
    "Servers",
    (
        Panel(
            title="Engine restarts",
            unit=Unit.COUNT,
            about=ENGINE_RESTARTS,
            why="Each failed all requests in flight; the log of that time says why.",
            queries=(Query(BOARD.increase(ENGINE_RESTARTS), "{{instance}}"),),
        ),
        Panel(
            title="Memory of the API process",
            unit=Unit.BYTES,
            about=PROCESS_RESIDENT_BYTES,
            why="It should not grow with uptime; weights and pages are the engine process's and not in here.",
            queries=(Query(BOARD.gauge(PROCESS_RESIDENT_BYTES), "{{instance}}"),),
        ),
        Panel(
            title="CPU of the API process",
            unit=Unit.CORES,
            about=PROCESS_CPU_SECONDS,
            why="At 1 core, tokenizing and streaming are the bottleneck, not the engine.",
            queries=(Query(BOARD.rate(PROCESS_CPU_SECONDS), "{{instance}}"),),
            thresholds=(Threshold(0.9, palette.BAD),),
        ),
        Panel(
            title="Open files, of those allowed",
            unit=Unit.SHARE,
            about=PROCESS_OPEN_FDS,
            why="At 1, new clients cannot connect: raise the limit of open files.",
            queries=(Query(ratio(BOARD.gauge(PROCESS_OPEN_FDS), BOARD.gauge(PROCESS_MAX_FDS)), "{{instance}}"),),
            thresholds=(Threshold(0.8, palette.BAD),),
        ),
        Panel(
            title="Uptime",
            unit=Unit.SECONDS,
            about=PROCESS_START_SECONDS,
            why="A fall to 0 is a restart of the whole server, after which all its counters begin anew.",
            queries=(Query(f"time() - {BOARD.gauge(PROCESS_START_SECONDS)}", "{{instance}}"),),
            width=16,
        ),
        Panel(
            title="Model",
            kind=Kind.TABLE,
            unit=Unit.COUNT,
            about=MODEL_INFO,
            why="Which model each server answers with, and how it computes it.",
            queries=(Query(BOARD.gauge(MODEL_INFO), "{{instance}}"),),
            width=24,
            height=5,
        ),
        Panel(
            title="KV memory layout",
            kind=Kind.TABLE,
            unit=Unit.COUNT,
            about=CACHE_CONFIG_INFO,
            why="Servers that should be alike are alike here.",
            queries=(Query(BOARD.gauge(CACHE_CONFIG_INFO), "{{instance}}"),),
            width=12,
            height=5,
        ),
        Panel(
            title="Version",
            kind=Kind.TABLE,
            unit=Unit.COUNT,
            about=BUILD_INFO,
            why="How far a rollout has come.",
            queries=(Query(BOARD.gauge(BUILD_INFO), "{{instance}}"),),
            width=12,
            height=5,
        ),
    ),
)

OVERVIEW = Dashboard(
    "octavo-overview",
    "Octavo / Overview",
    "Is it well, what is it doing, and if something is wrong, which board comes next?",
    (NOW, TRAFFIC, PRESSURE, LATENCIES, SERVERS),
)
