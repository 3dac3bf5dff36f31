"""KV memory: where the pages are, what they hold, and how long they will last."""

from __future__ import annotations

from server.metrics.catalogue import (
    AUDIT_FAILURES,
    HOST_PAGES,
    KV_AVAILABLE_PAGES,
    KV_BYTES,
    KV_CAPACITY_BYTES,
    KV_EVICTABLE_PAGES,
    KV_EVICTED_PAGES,
    KV_EXHAUSTION_SECONDS,
    KV_OLDEST_CACHED_SECONDS,
    KV_PAGES,
    KV_SHARED_PAGES,
    KV_USED_PAGES,
    KV_WANTED_PAGES,
    KV_WASTED_BYTES,
    KV_WASTED_SLOTS,
    KV_WASTED_SLOTS_RATIO,
    PAGE_SECONDS,
    PREFIX_CACHE_HITS,
    PREFIX_CACHE_MISSED,
    PREFIX_CACHE_QUERIES,
    RECOMPUTED_TOKENS,
    TENANT_PAGE_SECONDS,
)
from server.monitoring import palette
from server.monitoring.boards.shared_panels import HIT_RATIO, KV_USAGE, PAGES_BY_STATE
from server.monitoring.dashboard import Dashboard, Row
from server.monitoring.dashboard_json import BOARD
from server.monitoring.panel import Panel, Query, Stacking, Threshold, Unit, number
from server.monitoring.promql import ratio
from server.monitoring.shares import available_pages, prefix_hits, wasted_slots

GROUP_SHADES = {"/^free/": "super-light-green", "/^cached/": "blue", "/^held/": "orange"}

NOW = Row(
    "Now",
    (
        KV_USAGE,
        number(
            "Available",
            Unit.SHARE,
            KV_AVAILABLE_PAGES,
            "As a share of the pool: the room that is left for growth and for new requests.",
            available_pages(BOARD),
            base=palette.BAD,
            thresholds=(Threshold(0.05, palette.WARN), Threshold(0.2, palette.GOOD)),
        ),
        number(
            "Until exhaustion",
            Unit.SECONDS,
            KV_EXHAUSTION_SECONDS,
            "The nearest of all servers; when it comes to 0, somebody is preempted.",
            BOARD.lowest(KV_EXHAUSTION_SECONDS),
            base=palette.BAD,
            thresholds=(Threshold(30, palette.WARN), Threshold(120, palette.GOOD)),
            words={"Infinity": "not foreseen"},
            sparkline=False,
        ),
        HIT_RATIO,
        number(
            "Wasted slots",
            Unit.SHARE,
            KV_WASTED_SLOTS,
            "Of all groups together: what paging itself costs, half a page for each sequence and group.",
            wasted_slots(BOARD),
            thresholds=(Threshold(0.25, palette.WARN), Threshold(0.5, palette.BAD)),
        ),
        number(
            "Shared pages",
            Unit.SHARE,
            KV_SHARED_PAGES,
            "As a share of held pages: the memory that common prefixes and parallel samples save.",
            ratio(BOARD.total(KV_SHARED_PAGES), BOARD.total(KV_USED_PAGES)),
            base=palette.CALM,
        ),
        number(
            "Pool",
            Unit.BYTES,
            KV_CAPACITY_BYTES,
            "Set by --gpu-memory-utilization or --kv-cache-memory-bytes at start.",
            BOARD.total(KV_CAPACITY_BYTES),
            base=palette.PLAIN,
            sparkline=False,
        ),
        number(
            "Failed audits",
            Unit.COUNT,
            AUDIT_FAILURES,
            "In all of the shown time. Anything but 0 is a bug in Octavo: please report it, with the log.",
            BOARD.over("$__range").total_increase(AUDIT_FAILURES),
            thresholds=(Threshold(1, palette.BAD),),
            sparkline=False,
        ),
    ),
)

STATES = Row(
    "Where the pages are",
    (
        PAGES_BY_STATE,
        Panel(
            title="Pages by state and layer group",
            unit=Unit.PAGES,
            about=KV_PAGES,
            why="A windowed group stays flat as contexts grow; the group that looks back at everything does not.",
            queries=(Query(BOARD.total(KV_PAGES, "state", "group"), "{{state}}, {{group}}"),),
            width=12,
            stacking=Stacking.NORMAL,
            colors=GROUP_SHADES,
        ),
        Panel(
            title="Bytes by state",
            unit=Unit.BYTES,
            about=KV_BYTES,
            why="The same as pages, in what one pays for.",
            queries=(Query(BOARD.total(KV_BYTES, "state"), "{{state}}"),),
            stacking=Stacking.NORMAL,
            colors=palette.PAGE_STATES,
        ),
        Panel(
            title="Used, evictable, available",
            unit=Unit.PAGES,
            about=KV_AVAILABLE_PAGES,
            why="A cache that fills the pool is no shortage: evictable pages are available.",
            queries=(
                Query(BOARD.total(KV_USED_PAGES), "used"),
                Query(BOARD.total(KV_EVICTABLE_PAGES), "evictable"),
                Query(BOARD.total(KV_AVAILABLE_PAGES), "available"),
            ),
            colors={"used": "orange", "evictable": "blue", "available": "green"},
        ),
        Panel(
            title="Host pages by state",
            unit=Unit.PAGES,
            about=HOST_PAGES,
            why="Flat at 0 without --swap-space; without free ones, preempted requests are recomputed.",
            queries=(Query(BOARD.total(HOST_PAGES, "state"), "{{state}}"),),
            stacking=Stacking.NORMAL,
            colors=palette.HOST_STATES,
        ),
    ),
)

WASTE = Row(
    "Waste and sharing",
    (
        Panel(
            title="Wasted share, by layer group",
            unit=Unit.SHARE,
            about=KV_WASTED_SLOTS_RATIO,
            why="High with many short sequences: a smaller --block-size wastes less. The worst server is shown.",
            queries=(Query(BOARD.highest(KV_WASTED_SLOTS_RATIO, "group"), "{{group}}"),),
            maximum=1.0,
        ),
        Panel(
            title="Wasted bytes, by layer group",
            unit=Unit.BYTES,
            about=KV_WASTED_BYTES,
            why="Whether the waste is worth a thought at all.",
            queries=(Query(BOARD.total(KV_WASTED_BYTES, "group"), "{{group}}"),),
            stacking=Stacking.NORMAL,
        ),
        Panel(
            title="Shared pages, by layer group",
            unit=Unit.PAGES,
            about=KV_SHARED_PAGES,
            why="Each is held once and would be held several times without paging.",
            queries=(Query(BOARD.total(KV_SHARED_PAGES, "group"), "{{group}}"),),
            stacking=Stacking.NORMAL,
        ),
    ),
)

PREFIXES = Row(
    "Prefix cache",
    (
        Panel(
            title="Hit ratio",
            unit=Unit.SHARE,
            about=PREFIX_CACHE_HITS,
            why="A fall after a release is often a changed system prompt, or a date at its beginning.",
            queries=(Query(prefix_hits(BOARD), "hits of queries"),),
            maximum=1.0,
            colors={"hits of queries": "blue"},
        ),
        Panel(
            title="Looked up and found",
            unit=Unit.TOKENS_PER_SECOND,
            about=PREFIX_CACHE_QUERIES,
            why="A ratio of few tokens says little.",
            queries=(
                Query(BOARD.total_rate(PREFIX_CACHE_QUERIES), "queries"),
                Query(BOARD.total_rate(PREFIX_CACHE_HITS), "hits"),
            ),
            colors={"queries": "text", "hits": "blue"},
        ),
        Panel(
            title="Misses, by reason",
            unit=Unit.TOKENS_PER_SECOND,
            about=PREFIX_CACHE_MISSED,
            why="Evicted: more memory would help. Never seen: prompts differ. Salt: other tenants have it.",
            queries=(Query(BOARD.total_rate(PREFIX_CACHE_MISSED, "reason"), "{{reason}}"),),
            stacking=Stacking.NORMAL,
            colors=palette.MISSES,
        ),
        Panel(
            title="Evictions, by layer group",
            unit=Unit.PAGES,
            about=KV_EVICTED_PAGES,
            why="Per second. Harmless alone; together with misses of the reason evicted, the cache is too small.",
            queries=(Query(BOARD.total_rate(KV_EVICTED_PAGES, "group"), "{{group}}"),),
            width=12,
            stacking=Stacking.NORMAL,
        ),
        Panel(
            title="Age of the oldest cached page",
            unit=Unit.SECONDS,
            about=KV_OLDEST_CACHED_SECONDS,
            why="How long a prefix lives unused: shorter than users take between two turns means no hits.",
            queries=(Query(BOARD.lowest(KV_OLDEST_CACHED_SECONDS), "the shortest-lived cache"),),
            width=12,
        ),
    ),
)

PRESSURE = Row(
    "Pressure, and who makes it",
    (
        Panel(
            title="Until exhaustion",
            unit=Unit.SECONDS,
            about=KV_EXHAUSTION_SECONDS,
            why="A gap is good: nothing is foreseen. By server, since pools are not shared.",
            queries=(Query(f"{BOARD.gauge(KV_EXHAUSTION_SECONDS)} < +Inf", "{{instance}}"),),
            thresholds=(Threshold(30, palette.BAD),),
        ),
        Panel(
            title="Wanted and available",
            unit=Unit.PAGES,
            about=KV_WANTED_PAGES,
            why="A large wanted number beside a smaller available one is one big request that holds up the queue.",
            queries=(
                Query(BOARD.highest(KV_WANTED_PAGES), "wanted by the next"),
                Query(BOARD.lowest(KV_AVAILABLE_PAGES), "available"),
            ),
            colors={"wanted by the next": "red", "available": "green"},
        ),
        Panel(
            title="Recomputed tokens",
            unit=Unit.TOKENS_PER_SECOND,
            about=RECOMPUTED_TOKENS,
            why="Work that too little memory makes twice.",
            queries=(Query(BOARD.total_rate(RECOMPUTED_TOKENS), "recomputed"),),
            colors={"recomputed": "red"},
        ),
        Panel(
            title="Pages, by tenant",
            unit=Unit.PAGES,
            about=TENANT_PAGE_SECONDS,
            why="Its growth per second is the pages that a tenant's requests hold, on average: whose memory it is.",
            queries=(Query(BOARD.total_rate(TENANT_PAGE_SECONDS, "tenant"), "{{tenant}}"),),
            width=12,
            stacking=Stacking.NORMAL,
        ),
        Panel(
            title="Pages held, on average",
            unit=Unit.PAGES,
            about=PAGE_SECONDS,
            why="Per second, beside the pages held at a moment: what comes and goes between two scrapes is in it, too.",
            queries=(
                Query(BOARD.total_rate(PAGE_SECONDS), "on average"),
                Query(BOARD.total(KV_USED_PAGES), "held now"),
            ),
            width=12,
            colors={"held now": "orange"},
        ),
    ),
)

KV_MEMORY = Dashboard(
    "octavo-kv-memory",
    "Octavo / KV memory",
    "Where is every page, what does the prefix cache spare, and when does memory run out?",
    (NOW, STATES, WASTE, PREFIXES, PRESSURE),
)
