"""The overview: is it well, and if not, where to look."""

from __future__ import annotations

from server.metrics.catalogue import (
    BUILD_INFO,
    CACHE_CONFIG_INFO,
    E2E,
    ENGINE_PROCESS_CPU_SECONDS,
    ENGINE_PROCESS_MAX_FDS,
    ENGINE_PROCESS_OPEN_FDS,
    ENGINE_PROCESS_RESIDENT_BYTES,
    ENGINE_PROCESS_START_SECONDS,
    ENGINE_RESTARTS,
    ENGINE_UP,
    GENERATION_TOKENS,
    HTTP_RESPONSES,
    ITL,
    MODEL_INFO,
    PROCESS_CPU_SECONDS,
    PROCESS_MAX_FDS,
    PROCESS_OPEN_FDS,
    PROCESS_RESIDENT_BYTES,
    PROCESS_START_SECONDS,
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
from server.monitoring.promql import ratio
from server.monitoring.shares import failed_requests

PROCESS_SHADES = {"/^engine/": "blue", "/^API/": "purple"}

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
            title="Memory, by process",
            unit=Unit.BYTES,
            about=ENGINE_PROCESS_RESIDENT_BYTES,
            why="On CPUs that is weights and pages: it grows up to the pool's size. The API's should not grow.",
            queries=(
                Query(BOARD.gauge(ENGINE_PROCESS_RESIDENT_BYTES), "engine, {{instance}}"),
                Query(BOARD.gauge(PROCESS_RESIDENT_BYTES), "API, {{instance}}"),
            ),
            colors=PROCESS_SHADES,
        ),
        Panel(
            title="CPU, by process",
            unit=Unit.CORES,
            about=PROCESS_CPU_SECONDS,
            why="An API process at 1 core is the bottleneck: tokenizing and streaming, not the engine.",
            queries=(
                Query(BOARD.rate(ENGINE_PROCESS_CPU_SECONDS), "engine, {{instance}}"),
                Query(BOARD.rate(PROCESS_CPU_SECONDS), "API, {{instance}}"),
            ),
            colors=PROCESS_SHADES,
        ),
        Panel(
            title="Open files, of those allowed",
            unit=Unit.SHARE,
            about=PROCESS_OPEN_FDS,
            why="At 1, new clients cannot connect: raise the limit of open files.",
            queries=(
                Query(ratio(BOARD.gauge(PROCESS_OPEN_FDS), BOARD.gauge(PROCESS_MAX_FDS)), "API, {{instance}}"),
                Query(
                    ratio(BOARD.gauge(ENGINE_PROCESS_OPEN_FDS), BOARD.gauge(ENGINE_PROCESS_MAX_FDS)),
                    "engine, {{instance}}",
                ),
            ),
            width=12,
            colors=PROCESS_SHADES,
            thresholds=(Threshold(0.8, palette.BAD),),
        ),
        Panel(
            title="Uptime, by process",
            unit=Unit.SECONDS,
            about=PROCESS_START_SECONDS,
            why="The API's falls to 0 when the whole server was restarted, the engine's also when only that was.",
            queries=(
                Query(f"time() - {BOARD.gauge(PROCESS_START_SECONDS)}", "API, {{instance}}"),
                Query(f"time() - {BOARD.gauge(ENGINE_PROCESS_START_SECONDS)}", "engine, {{instance}}"),
            ),
            width=12,
            colors=PROCESS_SHADES,
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
