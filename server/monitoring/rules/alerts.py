"""Alerts: what is worth somebody's attention, and what that somebody should do.

Each asks for a symptom that users feel, or for a cause that they will feel soon; none fires on a busy server that does
its work.
"""

from __future__ import annotations

from server.metrics.catalogue import (
    AUDIT_FAILURES,
    ENGINE_RESTARTS,
    ENGINE_UP,
    KV_EXHAUSTION_SECONDS,
    KV_USAGE_RATIO,
    LONGEST_WAIT_SECONDS,
    REQUESTS_IN_FLIGHT,
    REQUESTS_WAITING,
    STEPS,
)
from server.monitoring.objectives import ITL_OBJECTIVE, TTFT_OBJECTIVE, Objective
from server.monitoring.rules.recording import (
    ERROR_RATIO,
    HIT_RATIO_BEFORE,
    HIT_RATIO_NOW,
    HTTP_5XX_RATIO,
    INSTANCE,
    KV_AVAILABLE_RATIO,
    KV_WASTED_RATIO,
    PREFIX_QUERY_RATE,
    RECOMPUTED_RATIO,
    REFUSED_RATIO,
    slow_ratio,
)
from server.monitoring.rules.rule import Alert, RuleGroup, Severity

TARGET = 'job=~".*octavo.*"'  # a job whose name says that it is Octavo; the metrics themselves need no such name
ON_INSTANCE = "{{ $labels.instance }}"
ON_JOB = "{{ $labels.job }}"
SHARE = "{{ $value | humanizePercentage }}"

AVAILABILITY = (
    Alert(
        name="OctavoDown",
        promql=f"up{{{TARGET}}} == 0",
        lasting="1m",
        severity=Severity.CRITICAL,
        summary=f"Prometheus cannot reach Octavo on {ON_INSTANCE}.",
        meaning="The API process does not answer /metrics: it is gone, or hangs, or the network is in between.",
        action="Ask /health. Nothing answers: read the log's end, look for a kill for want of memory, start it again. "
        "It answers: look at the network policy and at Prometheus's own targets page.",
        board="octavo-overview",
    ),
    Alert(
        name="OctavoEngineDown",
        promql=f"{INSTANCE.gauge(ENGINE_UP)} == 0",
        lasting="5m",
        severity=Severity.CRITICAL,
        summary=f"The engine behind {ON_INSTANCE} does not serve.",
        meaning="The API answers, with 503: the engine is still loading its model, or died and does not come back.",
        action="The log and /ready say which. A load that takes longer than this alert waits is no fault: raise its "
        "time. An engine that fails at start says in one sentence why.",
        board="octavo-overview",
    ),
    Alert(
        name="OctavoEngineRestarted",
        promql=f"{INSTANCE.over('15m').increase(ENGINE_RESTARTS)} > 0",
        lasting="0m",
        severity=Severity.WARNING,
        summary=f"The engine behind {ON_INSTANCE} died and was started again.",
        meaning="Requests in flight failed, and the prefix cache is empty again.",
        action="Find the engine's last lines in the log: out of memory, a device fault, a bug. Once is a note; see "
        "OctavoEngineCrashLoop for more.",
        board="octavo-overview",
    ),
    Alert(
        name="OctavoEngineCrashLoop",
        promql=f"{INSTANCE.over('1h').increase(ENGINE_RESTARTS)} >= 3",
        lasting="0m",
        severity=Severity.CRITICAL,
        summary=f"The engine behind {ON_INSTANCE} died {{{{ $value | humanize }}}} times within an hour.",
        meaning="Whatever kills it is still there; users see errors again and again.",
        action="Take the server out of the balancer. Same last lines each time: one request may do it, or memory that "
        "is too tight (--gpu-memory-utilization), or a device that is broken.",
        board="octavo-overview",
    ),
    Alert(
        name="OctavoEngineStalled",
        promql=f"{INSTANCE.gauge(REQUESTS_IN_FLIGHT)} > 0 and {INSTANCE.over('3m').rate(STEPS)} == 0 "
        f"and {INSTANCE.gauge(ENGINE_UP)} == 1",
        lasting="2m",
        severity=Severity.CRITICAL,
        summary=f"{ON_INSTANCE} has {{{{ $value | humanize }}}} requests and runs no steps.",
        meaning="There is work and the engine does none of it: a device that hangs, or a step without end.",
        action="Take a stack of the engine process (py-spy dump), then end it: the API fails what was in flight and "
        "starts another. Report the stack.",
        board="octavo-scheduler",
    ),
    Alert(
        name="OctavoAuditFailed",
        promql=f"{INSTANCE.over('1h').increase(AUDIT_FAILURES)} > 0",
        lasting="0m",
        severity=Severity.CRITICAL,
        summary=f"An audit on {ON_INSTANCE} found a page that is not accounted for.",
        meaning="The block manager's books do not add up. It repaired what it could; answers may have been wrong.",
        action="This is always a bug. Keep the log, which names the page and its owner, restart the server, report it.",
        board="octavo-kv-memory",
    ),
)

MEMORY = (
    Alert(
        name="OctavoKvPagesExhausted",
        # Not nearly none: after each preemption a quarter of the pool can be left, and too little for who is next.
        promql=f"{KV_AVAILABLE_RATIO.selector} < 0.5 "
        f"and ignoring (reason) {INSTANCE.gauge(REQUESTS_WAITING, reason='pages')} > 0",
        lasting="5m",
        severity=Severity.WARNING,
        summary=f"{ON_INSTANCE} has {SHARE} of its KV pages left, and requests wait for pages.",
        meaning="Memory, not computing, limits how many requests run; the others wait.",
        action="More pages: --gpu-memory-utilization, --kv-cache-dtype int8, another server. Fewer at once: "
        "--max-num-seqs. Look on the board for one tenant, or one long context, that holds most.",
        board="octavo-kv-memory",
    ),
    Alert(
        name="OctavoKvExhaustionNear",
        promql=f"{INSTANCE.gauge(KV_EXHAUSTION_SECONDS)} < 10",
        lasting="2m",
        severity=Severity.WARNING,
        summary=f"Running requests on {ON_INSTANCE} will have taken every KV page within seconds, for minutes on end.",
        meaning="Each time memory runs out a running request is preempted, and its tokens wait and are computed again.",
        action="Raise --watermark-tokens, so that fewer are admitted into the same memory, or add pages.",
        board="octavo-kv-memory",
    ),
    Alert(
        name="OctavoPreemptionStorm",
        promql=f"{RECOMPUTED_RATIO.selector} > 0.1",
        lasting="10m",
        severity=Severity.WARNING,
        summary=f"{SHARE} of the tokens that {ON_INSTANCE} computes, it had computed before.",
        meaning="Requests push each other out of memory: the server is busy and little comes of it.",
        action="Lower --max-num-seqs or raise --watermark-tokens now; then add pages, or --swap-space, so that pages "
        "are moved instead of computed again.",
        board="octavo-scheduler",
    ),
    Alert(
        name="OctavoPrefixHitRatioFell",
        promql=f"{HIT_RATIO_NOW.selector} < 0.5 * {HIT_RATIO_BEFORE.selector} and {HIT_RATIO_BEFORE.selector} > 0.1 "
        f"and {PREFIX_QUERY_RATE.selector} > 100",
        lasting="30m",
        severity=Severity.WARNING,
        summary=f"The prefix hit ratio of {ON_JOB} is {SHARE}, less than half of what it was over the last day.",
        meaning="Prompts that used to be read from pages are computed: first tokens come later, and less gets done.",
        action="Look at misses by reason. Never seen: a client changed the beginning of its prompts, or the balancer "
        "sends a user to another server each time. Evicted: the cache is too small for what is asked of it.",
        board="octavo-kv-memory",
    ),
    Alert(
        name="OctavoKvWasteHigh",
        promql=f"{KV_WASTED_RATIO.selector} > 0.5 and {INSTANCE.gauge(KV_USAGE_RATIO)} > 0.5",
        lasting="30m",
        severity=Severity.WARNING,
        summary=f"{SHARE} of the slots in held KV pages on {ON_INSTANCE} have no token.",
        meaning="More than half of the memory in use holds nothing: sequences are short beside a page.",
        action="Start with a smaller --block-size. If sequences are long, it is a bug: please report it.",
        board="octavo-kv-memory",
    ),
)

LOAD = (
    Alert(
        name="OctavoRefusing",
        promql=f"{REFUSED_RATIO.selector} > 0.01",
        lasting="5m",
        severity=Severity.WARNING,
        summary=f"{ON_JOB} refuses {SHARE} of its requests, because the queue is full.",
        meaning="Clients get 429 with a Retry-After; those that do not come again lose their request.",
        action="Add servers: the load is above what these can do. If TTFT is well within its objective, a longer queue "
        "(--max-queued-requests) is an answer, too.",
        board="octavo-scheduler",
    ),
    Alert(
        name="OctavoRequestsWaitLong",
        promql=f"{INSTANCE.gauge(LONGEST_WAIT_SECONDS)} > 60",
        lasting="5m",
        severity=Severity.WARNING,
        summary=f"Somebody has waited {{{{ $value | humanizeDuration }}}} on {ON_INSTANCE}.",
        meaning="The queue does not empty, or one request never comes to its turn.",
        action="Look at waiting by reason: pages, sequences and tokens each point at the limit that holds. For one "
        "request, its own view at /dashboard says why it waits.",
        board="octavo-scheduler",
    ),
    Alert(
        name="OctavoRequestErrors",
        promql=f"{ERROR_RATIO.selector} > 0.05",
        lasting="5m",
        severity=Severity.CRITICAL,
        summary=f"{SHARE} of the requests to {ON_JOB} end by an error.",
        meaning="Accepted requests fail: the engine died, a step failed, or a time limit passed.",
        action="Refusals by reason tell time limits from faults. For faults the log has one line for each failed step.",
        board="octavo-overview",
    ),
    Alert(
        name="OctavoHttpErrors",
        promql=f"{HTTP_5XX_RATIO.selector} > 0.05",
        lasting="5m",
        severity=Severity.CRITICAL,
        summary=f"{SHARE} of the HTTP answers of {ON_JOB} have a status of 500 or more.",
        meaning="Users see failures: 503 while an engine is away, 500 for a fault.",
        action="HTTP answers by status and route say which. 503: see OctavoEngineDown. 500: the log has its trace.",
        board="octavo-overview",
    ),
)

FAST_BURN, SLOW_BURN = 14.4, 6.0  # times the budget: a month's is gone in 2 and in 5 days


def burn_alerts(objective: Objective) -> tuple[Alert, Alert]:
    """Two alerts on how fast the budget of slow observations is used up, each over a long and a short window.

    The long window says that it matters, the short one that it still goes on. (Site Reliability Workbook, chapter 5.)
    """

    def burns(rate: float, long: str, short: str) -> str:
        share = f"{round(rate * objective.budget, 9):g}"
        return " and ".join(f"{slow_ratio(objective, window).selector} > {share}" for window in (long, short))

    summary = f"{SHARE} of {objective.name} on {ON_JOB} are slower than promised ({objective.words})."
    action = (
        "Open the latency board. High queue times want more servers, high prefill times more prefix hits or longer "
        "steps; a high ITL wants shorter steps (--max-num-batched-tokens) or fewer sequences (--max-num-seqs)."
    )
    return (
        Alert(
            name=f"Octavo{objective.name.title()}BudgetBurnsFast",
            promql=burns(FAST_BURN, "1h", "5m"),
            lasting="2m",
            severity=Severity.CRITICAL,
            summary=summary,
            meaning="At this rate, what may be slow in a month has been within two days. Users notice now.",
            action=action,
            board="octavo-latency",
        ),
        Alert(
            name=f"Octavo{objective.name.title()}BudgetBurns",
            promql=burns(SLOW_BURN, "6h", "30m"),
            lasting="15m",
            severity=Severity.WARNING,
            summary=summary,
            meaning="At this rate, what may be slow in a month has been within five days.",
            action=action,
            board="octavo-latency",
        ),
    )


OBJECTIVES = (*burn_alerts(TTFT_OBJECTIVE), *burn_alerts(ITL_OBJECTIVE))

ALERT_GROUPS = (
    RuleGroup("octavo-availability", "15s", AVAILABILITY),
    RuleGroup("octavo-memory", "15s", MEMORY),
    RuleGroup("octavo-load", "15s", LOAD),
    RuleGroup("octavo-objectives-burn", "30s", OBJECTIVES),
)
ALERTS: tuple[Alert, ...] = (*AVAILABILITY, *MEMORY, *LOAD, *OBJECTIVES)
