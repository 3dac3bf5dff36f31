"""The scheduler: who waits and why, who gave way, and what a step is spent on."""

from __future__ import annotations

from server.metrics.catalogue import (
    ADAPTER_BYTES,
    ADAPTER_REQUESTS,
    GENERATION_TOKENS,
    LONGEST_WAIT_SECONDS,
    OVERTAKES,
    PREEMPTIONS,
    PROMPT_TOKENS_BY_SOURCE,
    QUEUED_TOKENS,
    RECOMPUTED_TOKENS,
    REQUESTS_RUNNING,
    REQUESTS_SUBMITTED,
    ROTATIONS,
    SPEC_ACCEPTED_TOKENS,
    SPEC_DRAFT_TOKENS,
    SPEC_DRAFTS,
    STEP_DURATION,
    STEP_PART_SECONDS,
    STEP_SECONDS,
    STEP_SEQUENCES,
    STEP_TOKENS,
    STEPS,
)
from server.monitoring import palette
from server.monitoring.boards.shared_panels import (
    PREEMPTIONS_BY_KIND,
    REFUSALS_BY_REASON,
    RUNNING,
    WAITING,
    WAITING_BY_REASON,
)
from server.monitoring.dashboard import Dashboard, Row
from server.monitoring.dashboard_json import BOARD
from server.monitoring.panel import Panel, Query, Stacking, Threshold, Unit, heatmap, number, quantiles
from server.monitoring.promql import ratio
from server.monitoring.shares import recomputed_tokens

NOW = Row(
    "Now",
    (
        RUNNING,
        WAITING,
        number(
            "Backlog",
            Unit.TOKENS,
            QUEUED_TOKENS,
            "Divided by the computed tokens per second, the time until the queue is empty if nothing more comes.",
            BOARD.total(QUEUED_TOKENS),
            base=palette.CALM,
        ),
        number(
            "Longest wait",
            Unit.SECONDS,
            LONGEST_WAIT_SECONDS,
            "A queue in order has one user who waits longest.",
            BOARD.highest(LONGEST_WAIT_SECONDS),
            thresholds=(Threshold(5, palette.WARN), Threshold(30, palette.BAD)),
        ),
        number(
            "Steps",
            Unit.PER_SECOND,
            STEPS,
            "Each running request gets at most a few tokens in a step.",
            BOARD.total_rate(STEPS),
            base=palette.CALM,
        ),
        number(
            "Sequences in a step",
            Unit.COUNT,
            STEP_SEQUENCES,
            "The mean batch: the larger, the more a step's cost is shared.",
            BOARD.mean(STEP_SEQUENCES),
            base=palette.CALM,
        ),
        number(
            "Preemptions",
            Unit.PER_SECOND,
            PREEMPTIONS,
            "Each gives up pages that were computed.",
            BOARD.total_rate(PREEMPTIONS),
            thresholds=(Threshold(0.1, palette.WARN), Threshold(1, palette.BAD)),
        ),
        number(
            "Recomputed",
            Unit.SHARE,
            RECOMPUTED_TOKENS,
            "As a share of all computed tokens: what preemptions cost.",
            recomputed_tokens(BOARD),
            thresholds=(Threshold(0.02, palette.WARN), Threshold(0.1, palette.BAD)),
        ),
    ),
)

QUEUE = Row(
    "The queue",
    (
        WAITING_BY_REASON,
        REFUSALS_BY_REASON,
        Panel(
            title="Arriving and running",
            unit=Unit.COUNT,
            about=REQUESTS_SUBMITTED,
            why="Arrivals are per second. Running flat at its most while arrivals rise: the server is full.",
            queries=(
                Query(BOARD.total_rate(REQUESTS_SUBMITTED), "arriving per second"),
                Query(BOARD.total(REQUESTS_RUNNING), "running"),
            ),
        ),
        Panel(
            title="Backlog",
            unit=Unit.TOKENS,
            about=QUEUED_TOKENS,
            why="Tells a queue of long prompts from one of short ones; a good signal to scale on.",
            queries=(Query(BOARD.total(QUEUED_TOKENS), "queued"),),
        ),
        Panel(
            title="Longest wait, by server",
            unit=Unit.SECONDS,
            about=LONGEST_WAIT_SECONDS,
            why="One server alone: the balancer, or one request that wants more pages than are free.",
            queries=(Query(BOARD.gauge(LONGEST_WAIT_SECONDS), "{{instance}}"),),
        ),
    ),
)

GIVING_WAY = Row(
    "Who gave way",
    (
        PREEMPTIONS_BY_KIND,
        Panel(
            title="Recomputed share of tokens",
            unit=Unit.SHARE,
            about=RECOMPUTED_TOKENS,
            why="Above a tenth, fewer requests at once (--max-num-seqs) or more pages give more tokens a second.",
            queries=(Query(recomputed_tokens(BOARD), "recomputed"),),
            width=12,
            colors={"recomputed": "red"},
            thresholds=(Threshold(0.1, palette.BAD),),
        ),
        Panel(
            title="Overtakes",
            unit=Unit.PER_SECOND,
            about=OVERTAKES,
            why="Small requests that used pages a big one could not: bounded, so that the big one comes to its turn.",
            queries=(Query(BOARD.total_rate(OVERTAKES), "overtakes"),),
            width=12,
        ),
        Panel(
            title="Rotations",
            unit=Unit.PER_SECOND,
            about=ROTATIONS,
            why="Flat at 0 unless clients ask for endless contexts.",
            queries=(Query(BOARD.total_rate(ROTATIONS), "rotations"),),
            width=12,
        ),
    ),
)

STEPS_ROW = Row(
    "Steps",
    (
        Panel(
            title="Where a step's time goes",
            unit=Unit.SHARE,
            about=STEP_PART_SECONDS,
            why="In seconds of each second, summed over servers. The model should have nearly all of it.",
            queries=(Query(BOARD.total_rate(STEP_PART_SECONDS, "part"), "{{part}}"),),
            width=12,
            stacking=Stacking.NORMAL,
            colors=palette.STEP_PARTS,
        ),
        Panel(
            title="Busy share, by server",
            unit=Unit.SHARE,
            about=STEP_SECONDS,
            why="At 1 the engine never rests, and every further request makes the others slower.",
            queries=(Query(BOARD.rate(STEP_SECONDS), "{{instance}}"),),
            width=12,
        ),
        quantiles("Step duration", Unit.SECONDS, STEP_DURATION, "The least time between two tokens.", BOARD),
        heatmap(
            "Step durations",
            Unit.SECONDS,
            STEP_DURATION,
            "Two bands are steps with and without prefill: a smaller --max-num-batched-tokens brings them together.",
            BOARD,
        ),
    ),
)

BATCHES = Row(
    "Batches",
    (
        quantiles("Sequences in a step", Unit.COUNT, STEP_SEQUENCES, "At --max-num-seqs it is full.", BOARD),
        heatmap("Sequences in a step, all", Unit.COUNT, STEP_SEQUENCES, "Whether batches are even or lumpy.", BOARD),
        quantiles("Tokens in a step", Unit.TOKENS, STEP_TOKENS, "At --max-num-batched-tokens, prompts wait.", BOARD),
        heatmap("Tokens in a step, all", Unit.TOKENS, STEP_TOKENS, "Decodes lie low, prefill chunks high.", BOARD),
        Panel(
            title="Prompt tokens, by source",
            unit=Unit.TOKENS_PER_SECOND,
            about=PROMPT_TOKENS_BY_SOURCE,
            why="Only what is not read from pages costs steps.",
            queries=(Query(BOARD.total_rate(PROMPT_TOKENS_BY_SOURCE, "source"), "{{source}}"),),
            stacking=Stacking.NORMAL,
            colors={"computed": "orange", "cached": "blue"},
        ),
        Panel(
            title="Generated and recomputed tokens",
            unit=Unit.TOKENS_PER_SECOND,
            about=GENERATION_TOKENS,
            why="The first is what users get; the second is what it costs them.",
            queries=(
                Query(BOARD.total_rate(GENERATION_TOKENS), "generated"),
                Query(BOARD.total_rate(RECOMPUTED_TOKENS), "recomputed"),
            ),
            colors={"generated": "green", "recomputed": "red"},
        ),
        Panel(
            title="Speculation: guesses that stood",
            unit=Unit.SHARE,
            about=SPEC_ACCEPTED_TOKENS,
            why="Empty without --speculative. Low shares are noticed, and guessing then stops by itself.",
            queries=(
                Query(ratio(BOARD.total_rate(SPEC_ACCEPTED_TOKENS), BOARD.total_rate(SPEC_DRAFT_TOKENS)), "stood"),
            ),
            maximum=1.0,
        ),
        Panel(
            title="Speculation: tokens gained for each guess",
            unit=Unit.TOKENS,
            about=SPEC_DRAFTS,
            why="Tokens that a request got in a step besides the one it gets anyway.",
            queries=(Query(ratio(BOARD.total_rate(SPEC_ACCEPTED_TOKENS), BOARD.total_rate(SPEC_DRAFTS)), "gained"),),
            width=24,
            height=6,
        ),
    ),
)

ADAPTERS = Row(
    "Adapters",
    (
        Panel(
            title="Requests, by adapter",
            unit=Unit.COUNT,
            about=ADAPTER_REQUESTS,
            why="Empty without adapters. One that nobody uses may be unloaded; its memory shows beside.",
            queries=(Query(BOARD.total(ADAPTER_REQUESTS, "adapter", "state"), "{{adapter}}, {{state}}"),),
            width=12,
            stacking=Stacking.NORMAL,
        ),
        Panel(
            title="Memory, by adapter",
            unit=Unit.BYTES,
            about=ADAPTER_BYTES,
            why="On GPUs, adapters that are loaded later take what --gpu-memory-utilization leaves.",
            queries=(Query(BOARD.total(ADAPTER_BYTES, "adapter"), "{{adapter}}"),),
            width=12,
            stacking=Stacking.NORMAL,
        ),
    ),
)

SCHEDULING = Dashboard(
    "octavo-scheduler",
    "Octavo / Scheduler",
    "Who waits and for what, who was preempted, and what are steps spent on?",
    (NOW, QUEUE, GIVING_WAY, STEPS_ROW, BATCHES, ADAPTERS),
)
