"""Every metric of /metrics, in the order of a reader's questions: pages, cache, queue, steps, requests, latencies.

Names and meanings only. Invariants: what is exported is in here, and the other way round; labels come from fixed sets,
never from a request; every name says its unit.
"""

from __future__ import annotations

from engine.messages import STEP_DURATION_BOUNDS, STEP_PARTS, STEP_SEQUENCES_BOUNDS, STEP_TOKENS_BOUNDS
from scheduler.request import FinishReason, WaitReason
from server.metrics.metric_spec import Label, MetricSpec, counter, gauge, histogram, info

DISABLED = "disabled"  # the reason of prompt tokens that were not looked up in the prefix cache
QUEUE_FULL = "queue_full"  # the reason of refusals of what was never accepted
NO_KEYS = "none"  # the tenant of all requests to a server without API keys
OTHER_ROUTE = "other"

PAGE_STATES = Label("state", ("free", "cached", "held"))
HOST_STATES = Label("state", ("free", "prefix", "swapped"))
MISS_REASONS = Label("reason", ("too_short", "never_seen", "evicted", "salt", DISABLED))
SOURCES = Label("source", ("computed", "cached"))
WAIT_REASONS = Label.of("reason", WaitReason)
PREEMPTION_KINDS = Label("kind", ("recompute", "swap"))
PREEMPTION_CAUSES = Label("cause", ("prefill", "decode"))
PARTS = Label.of("part", STEP_PARTS)
OUTCOMES = Label.of("outcome", FinishReason)
REFUSAL_REASONS = Label("reason", (QUEUE_FULL, "queue_timeout", "timeout"))

TTFT_BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560,
)  # fmt: skip
ITL_BUCKETS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 1, 2, 5, 10, 20, 40, 80,
)  # fmt: skip
E2E_BUCKETS = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 3, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920,
    3840, 7680,
)  # fmt: skip
TOKEN_BUCKETS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
)  # fmt: skip
SAMPLES_BUCKETS = (1, 2, 5, 10, 20, 50, 100)

# ---- where the pages are

KV_PAGES = gauge(
    "octavo_kv_pages",
    "KV pages by state and layer group; free pages belong to the pool. The sum is octavo_kv_pages_capacity.",
    "group",
    PAGE_STATES,
)
KV_BYTES = gauge(
    "octavo_kv_bytes", "Bytes of KV pages by state and layer group, as octavo_kv_pages.", "group", PAGE_STATES
)
KV_PAGES_CAPACITY = gauge("octavo_kv_pages_capacity", "KV pages in the pool.")
KV_CAPACITY_BYTES = gauge("octavo_kv_capacity_bytes", "Bytes of KV memory in the pool.")
KV_USED_BYTES = gauge("octavo_kv_used_bytes", "Bytes of KV memory that requests hold.")
KV_USED_PAGES = gauge("octavo_kv_used_pages", "KV pages that requests hold, in all groups.")
KV_EVICTABLE_PAGES = gauge(
    "octavo_kv_evictable_pages", "Cached KV pages that can be taken for other tokens, in all groups."
)
KV_AVAILABLE_PAGES = gauge("octavo_kv_available_pages", "KV pages that can be taken now: free or evictable.")
KV_USAGE_RATIO = gauge("octavo_kv_usage_ratio", "Share of the pages that requests hold, 0 to 1.")
KV_SHARED_PAGES = gauge("octavo_kv_shared_pages", "Held KV pages that more than one sequence holds.", "group")
KV_HELD_SLOTS = gauge("octavo_kv_held_slots", "Token slots in held KV pages.", "group")
KV_WASTED_SLOTS = gauge("octavo_kv_wasted_slots", "Token slots in held KV pages that have no token yet.", "group")
KV_WASTED_SLOTS_RATIO = gauge(
    "octavo_kv_wasted_slots_ratio", "Share of the slots in held KV pages without a token, 0 to 1.", "group"
)
KV_WASTED_BYTES = gauge(
    "octavo_kv_wasted_bytes", "Bytes of the slots in held KV pages that have no token yet.", "group"
)
KV_EVICTED_PAGES = counter("octavo_kv_evicted_pages", "Cached pages that were taken for other tokens.", "group")
KV_OLDEST_CACHED_SECONDS = gauge(
    "octavo_kv_oldest_cached_seconds", "Seconds since the cached page that goes next was last used."
)
KV_WANTED_PAGES = gauge(
    "octavo_kv_wanted_pages", "KV pages that the waiting request which goes next needs and could not get; else 0."
)
KV_EXHAUSTION_SECONDS = gauge(
    "octavo_kv_exhaustion_seconds",
    "Seconds until running requests will have taken every page, as they grow now; +Inf where they end before.",
)
HOST_PAGES = gauge(
    "octavo_host_pages",
    "Pages of host memory: free, with an evicted prefix, or with a request that was swapped out.",
    HOST_STATES,
)
HOST_BYTES = gauge("octavo_host_bytes", "Bytes of host memory by state, as octavo_host_pages.", HOST_STATES)
PAGE_SECONDS = counter("octavo_page_seconds", "KV pages times seconds that requests held them.")
TENANT_PAGE_SECONDS = counter(
    "octavo_tenant_page_seconds", "KV pages times seconds that requests held them, by API key.", "tenant"
)
AUDIT_FAILURES = counter("octavo_audit_failures", "Audits that found a page not accounted for.")

# ---- what the prefix cache spares

PREFIX_CACHE_QUERIES = counter("octavo_prefix_cache_queries_tokens", "Prompt tokens looked up in the prefix cache.")
PREFIX_CACHE_HITS = counter("octavo_prefix_cache_hits_tokens", "Prompt tokens read from cached pages, not computed.")
PREFIX_CACHE_MISSED = counter(
    "octavo_prefix_cache_missed_tokens",
    "Prompt tokens that had to be computed at first admission, by the reason they were not cached.",
    MISS_REASONS,
)

# ---- who waits, who runs, who gave way

REQUESTS_RUNNING = gauge("octavo_requests_running", "Requests that hold pages.")
REQUESTS_WAITING = gauge(
    "octavo_requests_waiting",
    "Requests that wait to start or, preempted, to go on, by why they did not in the latest step.",
    WAIT_REASONS,
)
REQUESTS_IN_FLIGHT = gauge("octavo_requests_in_flight", "Requests submitted and not finished.")
QUEUED_TOKENS = gauge("octavo_queued_tokens", "Tokens that waiting requests have to compute.")
LONGEST_WAIT_SECONDS = gauge("octavo_longest_wait_seconds", "Seconds since the oldest waiting request arrived.")
PREEMPTIONS = counter(
    "octavo_preemptions",
    "Times a request gave its pages back, to go on later: kind says how, cause what they were taken for.",
    PREEMPTION_KINDS,
    PREEMPTION_CAUSES,
)
OVERTAKES = counter("octavo_overtakes", "Requests that started before an older one for which too few pages were free.")
ROTATIONS = counter("octavo_rotations", "Times a request at the end of the context dropped its middle and went on.")
ADAPTER_REQUESTS = gauge(
    "octavo_adapter_requests",
    "Requests that use an adapter, for each that is loaded, by whether they run or wait.",
    "adapter",
    Label("state", ("running", "waiting")),
)

# ---- what is computed

PROMPT_TOKENS = counter("octavo_prompt_tokens", "Prompt tokens of admitted requests, cached ones included.")
PROMPT_TOKENS_BY_SOURCE = counter(
    "octavo_prompt_tokens_by_source", "Prompt tokens of admitted requests, by where they came from.", SOURCES
)
RECOMPUTED_TOKENS = counter("octavo_recomputed_tokens", "Tokens computed once more after a preemption.")
GENERATION_TOKENS = counter("octavo_generation_tokens", "Tokens generated.")
SPEC_DRAFTS = counter("octavo_spec_drafts", "Steps of a request in which tokens were guessed (--speculative).")
SPEC_DRAFT_TOKENS = counter("octavo_spec_draft_tokens", "Tokens that were guessed and computed on the chance.")
SPEC_ACCEPTED_TOKENS = counter("octavo_spec_accepted_tokens", "Guessed tokens that stood.")
STEPS = counter("octavo_steps", "Steps the engine ran.")
STEP_SECONDS = counter("octavo_step_seconds", "Seconds the engine spent in steps.")
STEP_PART_SECONDS = counter("octavo_step_part_seconds", "Seconds the engine spent in parts of steps.", PARTS)
STEP_DURATION = histogram("octavo_step_duration_seconds", "Seconds of one step.", STEP_DURATION_BOUNDS)
STEP_TOKENS = histogram("octavo_step_tokens", "Tokens computed in one step.", STEP_TOKENS_BOUNDS)
STEP_SEQUENCES = histogram("octavo_step_sequences", "Sequences in one step.", STEP_SEQUENCES_BOUNDS)
ENGINE_UP = gauge(
    "octavo_engine_up",
    "1 while the engine's process is there and has loaded the model; /health tells whether it moves.",
)
ENGINE_RESTARTS = counter("octavo_engine_restarts", "Times the engine process died and was started again.")

# ---- what becomes of requests

REQUESTS_SUBMITTED = counter(
    "octavo_requests_submitted",
    "Requests sent to the engine: accepted ones, and those refused because the queue was full.",
)
REQUESTS = counter(
    "octavo_requests", "Accepted requests ended, by outcome: stop, length, abort (the client left) or error.", OUTCOMES
)
REFUSALS = counter(
    "octavo_refusals",
    "Requests the scheduler ended: queue_full ones were never accepted; the others have the outcome error too.",
    REFUSAL_REASONS,
)
HTTP_RESPONSES = counter(
    "octavo_http_responses",
    "HTTP answers begun, by route and status; what asks for no route there is counts as other.",
    "route", "status",
)  # fmt: skip
REQUEST_PROMPT_TOKENS = histogram(
    "octavo_request_prompt_tokens", "Prompt tokens of one request that ended.", TOKEN_BUCKETS
)
REQUEST_GENERATION_TOKENS = histogram(
    "octavo_request_generation_tokens",
    "Tokens generated for one request that ended, as its usage counts them.",
    TOKEN_BUCKETS,
)
REQUEST_MAX_TOKENS = histogram(
    "octavo_request_max_tokens", "Most tokens that one request that ended could generate.", TOKEN_BUCKETS
)
REQUEST_SAMPLES = histogram(
    "octavo_request_samples", "Samples that one prompt asks for (n, or best_of).", SAMPLES_BUCKETS
)

# ---- how long they take

TTFT = histogram(
    "octavo_time_to_first_token_seconds", "Seconds from arrival at the API to the first token.", TTFT_BUCKETS
)
ITL = histogram("octavo_inter_token_latency_seconds", "Seconds between two tokens of one request.", ITL_BUCKETS)
TPOT = histogram(
    "octavo_time_per_output_token_seconds",
    "Mean seconds between the tokens of one request that ended with two or more.",
    ITL_BUCKETS,
)
E2E = histogram("octavo_e2e_request_latency_seconds", "Seconds from arrival to an end by stop or length.", E2E_BUCKETS)
QUEUE_TIME = histogram(
    "octavo_request_queue_seconds",
    "Seconds from arrival in the engine to the last start before the first token, or to an end without one.",
    E2E_BUCKETS,
)
PREFILL_TIME = histogram(
    "octavo_request_prefill_seconds",
    "Seconds from the last start before the first token to that token, or to an end without one.",
    E2E_BUCKETS,
)
DECODE_TIME = histogram(
    "octavo_request_decode_seconds", "Seconds from the first token to the end in the engine.", E2E_BUCKETS
)
INFERENCE_TIME = histogram(
    "octavo_request_inference_seconds",
    "Seconds from the last start before the first token to the end in the engine.",
    E2E_BUCKETS,
)

# ---- what it runs as

BUILD_INFO = info("octavo_build_info", "The version of the server.", "version", "python", "torch")
MODEL_INFO = info(
    "octavo_model_info",
    "The served model.",
    "model_name", "device", "dtype", "weight_form", "attention_backend", "max_model_len",
)  # fmt: skip
CACHE_CONFIG_INFO = info(
    "octavo_cache_config_info",
    "How KV memory is laid out.",
    "block_size", "num_pages", "page_bytes", "kv_dtype", "prefix_caching", "host_pages",
)  # fmt: skip
ADAPTER_BYTES = gauge("octavo_adapter_bytes", "Memory of each adapter that is loaded.", "adapter")

# ---- what the processes take

PROCESS_CPU_SECONDS = counter("process_cpu_seconds", "CPU seconds that the API process used.")
PROCESS_RESIDENT_BYTES = gauge("process_resident_memory_bytes", "Resident memory of the API process in bytes.")
PROCESS_VIRTUAL_BYTES = gauge("process_virtual_memory_bytes", "Virtual memory of the API process in bytes.")
PROCESS_START_SECONDS = gauge("process_start_time_seconds", "When the API process started, in seconds of Unix time.")
PROCESS_OPEN_FDS = gauge("process_open_fds", "Open file descriptors of the API process: sockets of clients, above all.")
PROCESS_MAX_FDS = gauge("process_max_fds", "Most file descriptors that the API process may have open.")
ENGINE_PROCESS_CPU_SECONDS = counter(
    "octavo_engine_process_cpu_seconds", "CPU seconds that the engine process used; a new one starts at 0."
)
ENGINE_PROCESS_RESIDENT_BYTES = gauge(
    "octavo_engine_process_resident_memory_bytes", "Resident memory of the engine process in bytes."
)
ENGINE_PROCESS_VIRTUAL_BYTES = gauge(
    "octavo_engine_process_virtual_memory_bytes", "Virtual memory of the engine process in bytes."
)
ENGINE_PROCESS_START_SECONDS = gauge(
    "octavo_engine_process_start_time_seconds", "When the engine process started, in seconds of Unix time."
)
ENGINE_PROCESS_OPEN_FDS = gauge("octavo_engine_process_open_fds", "Open file descriptors of the engine process.")
ENGINE_PROCESS_MAX_FDS = gauge(
    "octavo_engine_process_max_fds", "Most file descriptors that the engine process may have open."
)

CATALOGUE: tuple[MetricSpec, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, MetricSpec))

# The questions that the metrics answer, each with the first of those that do.
SECTIONS: tuple[tuple[str, MetricSpec], ...] = (
    ("Where are the pages?", KV_PAGES),
    ("What does the prefix cache spare?", PREFIX_CACHE_QUERIES),
    ("Who waits, who runs, who gave way?", REQUESTS_RUNNING),
    ("What is computed?", PROMPT_TOKENS),
    ("What becomes of requests?", REQUESTS_SUBMITTED),
    ("How long do they take?", TTFT),
    ("What does it run as?", BUILD_INFO),
    ("What do the processes take?", PROCESS_CPU_SECONDS),
)
