"""Latency: how long users wait, whether that is what was promised, and in which part of a request's life."""

from __future__ import annotations

from server.metrics.catalogue import (
    DECODE_TIME,
    E2E,
    INFERENCE_TIME,
    ITL,
    PREFILL_TIME,
    QUEUE_TIME,
    REQUEST_GENERATION_TOKENS,
    REQUEST_MAX_TOKENS,
    REQUEST_PROMPT_TOKENS,
    REQUEST_SAMPLES,
    TPOT,
    TTFT,
)
from server.metrics.metric_spec import MetricSpec
from server.monitoring import palette
from server.monitoring.boards.shared_panels import TTFT_P99
from server.monitoring.dashboard import Dashboard, Row
from server.monitoring.dashboard_json import BOARD
from server.monitoring.objectives import ITL_OBJECTIVE, TTFT_OBJECTIVE, Objective
from server.monitoring.panel import Panel, Query, Stacking, Threshold, Unit, heatmap, number, quantiles
from server.monitoring.promql import ratio

OBJECTIVE_WINDOW = BOARD.over("$__range")


def slow_share(objective: Objective) -> Panel:
    """What share was slower than promised, in the time that is shown."""
    return number(
        f"Slow {objective.name}",
        Unit.SHARE,
        objective.histogram,
        f"The share above the objective in all of the shown time; promised is {objective.words}.",
        OBJECTIVE_WINDOW.share_above(objective.histogram, objective.seconds),
        thresholds=(Threshold(objective.budget / 2, palette.WARN), Threshold(objective.budget, palette.BAD)),
        sparkline=False,
    )


def median(title: str, spec: MetricSpec, why: str) -> Panel:
    return number(title, Unit.SECONDS, spec, why, BOARD.quantile(0.5, spec), base=palette.CALM)


NOW = Row(
    "Now, and what was promised",
    (
        slow_share(TTFT_OBJECTIVE),
        slow_share(ITL_OBJECTIVE),
        TTFT_P99,
        number(
            "ITL p99",
            Unit.SECONDS,
            ITL,
            "A text that stutters: a long step, often a long prompt of somebody else.",
            BOARD.quantile(0.99, ITL),
            thresholds=(
                Threshold(ITL_OBJECTIVE.seconds, palette.WARN),
                Threshold(5 * ITL_OBJECTIVE.seconds, palette.BAD),
            ),
        ),
        median("TTFT p50", TTFT, "What the usual user waits for a first word."),
        median("ITL p50", ITL, "About 0.05 s is as fast as people read."),
        median("Whole answer p50", E2E, "For clients that do not stream."),
        number(
            "First tokens",
            Unit.PER_SECOND,
            TTFT,
            "How many observations the quantiles are made of: a p99 of few is noise.",
            BOARD.count_rate(TTFT),
            base=palette.PLAIN,
        ),
    ),
)

FIRST = Row(
    "To the first token",
    (
        quantiles("Time to first token", Unit.SECONDS, TTFT, "The wait before anything appears.", BOARD),
        heatmap("Times to first token", Unit.SECONDS, TTFT, "Two bands: cached prompts, and computed ones.", BOARD),
        quantiles("In the queue", Unit.SECONDS, QUEUE_TIME, "High: see the scheduler's board for why.", BOARD, 12),
        quantiles("In prefill", Unit.SECONDS, PREFILL_TIME, "High: long prompts, or few prefix hits.", BOARD, 12),
    ),
)

TOKENS = Row(
    "From token to token",
    (
        quantiles("Between two tokens", Unit.SECONDS, ITL, "How fluently text appears.", BOARD),
        heatmap("All intervals between two tokens", Unit.SECONDS, ITL, "A second, higher band is stutter.", BOARD),
        quantiles("Mean of a request", Unit.SECONDS, TPOT, "Stutter is averaged out: the pace as a whole.", BOARD),
        heatmap("Means of all requests", Unit.SECONDS, TPOT, "Whether some users are always slower.", BOARD),
    ),
)

WHOLE = Row(
    "Whole requests",
    (
        quantiles("Whole answers", Unit.SECONDS, E2E, "Grows with the length of answers, too.", BOARD),
        heatmap("All whole answers", Unit.SECONDS, E2E, "Which times are usual.", BOARD),
        Panel(
            title="Where the time goes",
            unit=Unit.SECONDS,
            about=QUEUE_TIME,
            why="Means of the three parts of a request's life, one above the other.",
            queries=(
                Query(BOARD.mean(QUEUE_TIME), "queue"),
                Query(BOARD.mean(PREFILL_TIME), "prefill"),
                Query(BOARD.mean(DECODE_TIME), "decode"),
            ),
            stacking=Stacking.NORMAL,
            colors={"queue": "red", "prefill": "orange", "decode": "blue"},
        ),
        quantiles("In decode", Unit.SECONDS, DECODE_TIME, "Tokens times the interval between them.", BOARD, 8),
        quantiles("In the engine", Unit.SECONDS, INFERENCE_TIME, "Prefill and decode: all but the queue.", BOARD, 8),
    ),
)

SHAPES = Row(
    "What is asked for",
    (
        quantiles("Prompt tokens", Unit.TOKENS, REQUEST_PROMPT_TOKENS, "Longer ones take longer.", BOARD, 8),
        quantiles("Generated tokens", Unit.TOKENS, REQUEST_GENERATION_TOKENS, "As do longer answers.", BOARD, 8),
        Panel(
            title="Generated, of what was allowed",
            unit=Unit.SHARE,
            about=REQUEST_MAX_TOKENS,
            why="The mean answer as a share of the mean limit: near 1, answers are cut off.",
            queries=(
                Query(
                    ratio(BOARD.mean(REQUEST_GENERATION_TOKENS), BOARD.mean(REQUEST_MAX_TOKENS)), "generated of allowed"
                ),
            ),
        ),
        quantiles("Most tokens allowed", Unit.TOKENS, REQUEST_MAX_TOKENS, "What clients reserve.", BOARD),
        quantiles("Samples of a prompt", Unit.COUNT, REQUEST_SAMPLES, "They share the prompt's pages.", BOARD),
    ),
)

LATENCY = Dashboard(
    "octavo-latency",
    "Octavo / Latency",
    "How long do users wait, is it what was promised, and where does the time go?",
    (NOW, FIRST, TOKENS, WHOLE, SHAPES),
)
