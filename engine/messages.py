"""What the API process and the engine process say to each other, and nothing else.

Plain msgspec structs, encoded as MessagePack: no torch, no pickles, no callbacks. `EngineClient` and the engine process
exchange them as length-prefixed frames.
"""

from __future__ import annotations

import enum

import msgspec

from engine.adapter_messages import AdapterAnswer, AdapterReport, AdapterRequests, LoadAdapter, UnloadAdapter
from engine.histogram import Histogram
from engine.page_messages import PageRead, PagesRead, ReadPage, ReadPages, ReadSequence
from engine.sampling_params import SamplingParams, TokenLogprobs
from scheduler.request import FinishReason, RequestStatus, WaitReason


class Pooling(enum.StrEnum):
    """How the hidden states of a prompt become one vector."""

    MEAN = "mean"
    LAST = "last"


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """One sequence to generate: token ids in, token ids out.

    ``children`` are ids of further samples of the same prompt, which share its pages. ``cache_salt`` keeps its pages
    from being found under any other salt. ``adapter`` is the name of a loaded adapter, "" for the model as it is.
    ``rotates``: at the end of the context, drop the middle and go on.

    ``tenant`` is whose share it counts towards, ``priority`` lower for what goes first; each matters to the scheduling
    policy of its name. ``timeout`` is in seconds from arrival in the engine to the end. ``reports_position``: while it
    waits, say at which place. ``prompt_logprobs``: tell the log probability of each prompt token, and of so many most
    likely ones at its position. ``pooling``: tell the prompt's embedding; such a request has ``max_tokens`` 0. For both
    every prompt position is computed, whatever pages hold already.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    children: list[str] = []
    cache_salt: str = ""
    adapter: str = ""
    rotates: bool = False
    tenant: str = ""
    priority: int = 0
    timeout: float | None = None
    reports_position: bool = False
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None

    @property
    def reads_prompt(self) -> bool:
        """Whether something is told of its prompt."""
        return self.prompt_logprobs is not None or self.pooling is not None


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these requests in whatever state they are; unknown ids are ignored."""

    request_ids: list[str]


class TokenTable(msgspec.Struct, frozen=True, tag="tokens"):
    """The bytes that each token stands for inside a text, none for tokens that are never in one.

    It comes once, before the first request with a grammar.
    """

    tokens: list[bytes]


class ExplainRequest(msgspec.Struct, frozen=True, tag="explain"):
    """Ask why a request waits, or was preempted; answered between two steps with an `Explained`."""

    query_id: int
    request_id: str


class ReadStats(msgspec.Struct, frozen=True, tag="read_stats"):
    """Ask for the state of pages and queues, now; answered between two steps with a `StatsRead`."""

    query_id: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Leave the step loop and exit."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request ended with an error. ``code`` is a RefusalReason, "never_fits", "invalid", "invalid_grammar",
    "unknown_adapter" or "step_failed".

    ``started``: it had begun to run. ``retry_after``: seconds after which it may be worth while to come again.
    """

    code: str
    message: str
    started: bool = False
    retry_after: float | None = None


class PreemptionNote(msgspec.Struct, frozen=True, kw_only=True):
    """One preemption of a request: for whom (itself, where older ones kept their pages), how, and what it cost.

    ``seconds`` is when it was, since the request arrived in the engine.
    """

    requester: str
    seconds: float
    kind: str
    cause: str
    pages_freed: int
    tokens_to_recompute: int


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What a request cost: pages at their peak, pages x seconds, and tokens that were, or were not, computed for it.

    ``draft_tokens`` were computed on a guess, and ``accepted_draft_tokens`` of them stood. ``queue_seconds`` are from
    arrival in the engine to the last start before the first token, ``prefill_seconds`` from there to that token and
    ``decode_seconds`` from there to the end, all on the engine's clock; None for what it never came to.
    The last of them that it came to lasts to the end, so that they add up.
    """

    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None
    peak_pages: int
    page_seconds: float
    cached_tokens: int
    recomputed_tokens: int
    rotations: int
    draft_tokens: int
    accepted_draft_tokens: int
    preemptions: list[PreemptionNote]


class RequestDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """New tokens of one request in one step; ``finish_reason`` only on its last.

    ``stop_token_id`` names the id that ended the request when it was one of its ``stop_token_ids``; it is None for EOS.
    ``num_cached_tokens`` counts prompt tokens read from pages instead of computed, as of first admission.
    ``logprobs`` has one entry per token of ``token_ids`` where the request asked for them, else none.
    ``prompt_logprobs`` come in pieces, in the order of the prompt, each position once and the first as None, all
    of them before the first token or with it. ``embedding`` has the prompt's vector: little-endian
    float32 [hidden_size].
    ``logprob`` sums the log probabilities of ``token_ids`` where ``rank`` asked for it. ``ledger`` comes with the
    last delta, whatever ended the request, unless it was refused or had an error before it was queued. ``failure``
    explains a finish reason of ERROR. ``queue_position`` comes alone, to requests that asked for it: 1 for the one that
    starts next.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    logprob: float = 0.0
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs | None] = []
    embedding: bytes | None = None
    ledger: Ledger | None = None
    failure: Failure | None = None
    queue_position: int | None = None


STEP_PARTS = ("schedule", "model", "sample", "output")
STEP_DURATION_BOUNDS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 1, 2, 5, 10, 20, 40, 80,
)  # fmt: skip
STEP_TOKENS_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_SEQUENCES_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class GroupUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of one layer group; ``shared`` ones are part of ``held``, ``evicted`` counts since the start.

    ``wasted_slots`` of the ``held_slots`` in held pages have no token yet.
    """

    name: str
    cached: int
    held: int
    bytes_held: int
    shared: int
    evicted: int
    held_slots: int
    wasted_slots: int


class PreemptionCount(msgspec.Struct, frozen=True, kw_only=True):
    """Preemptions of one kind and cause."""

    kind: str
    cause: str
    count: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """State of pages and queues between two steps, with counters since the engine started.

    Pages: ``pages_free + sum(cached) + sum(held) == pages_total``. ``waiting_by_reason`` adds up to ``waiting``;
    ``queued_tokens`` are those that waiting requests have to compute. ``refusals`` are by RefusalReason.
    ``wanted_pages`` are what the waiting request which goes next could not get, 0 where it waits for something else.
    ``exhaustion_seconds``: until running requests have taken every page, growing as they do; None where they end
    before. ``tenant_page_seconds``, up to now, adds up to ``page_seconds``. ``step_part_seconds`` adds up to
    ``step_seconds``, in the parts STEP_PARTS. Histograms are of steps: their seconds, tokens and sequences.
    ``adapter_requests`` has an entry for each adapter that can be chosen.
    """

    pages_total: int
    pages_free: int
    page_bytes: int
    groups: list[GroupUsage]
    oldest_cached_seconds: float
    host_pages_total: int
    host_pages_free: int
    host_pages_swapped: int
    running: int
    waiting: int
    waiting_by_reason: dict[str, int]
    wanted_pages: int
    exhaustion_seconds: float | None
    queued_tokens: int
    longest_wait_seconds: float
    preemptions: list[PreemptionCount]
    refusals: dict[str, int]
    overtakes: int
    rotations: int
    prompt_tokens: int
    cached_prompt_tokens: int
    missed_prompt_tokens: dict[str, int]
    recomputed_tokens: int
    generation_tokens: int
    drafts: int
    draft_tokens: int
    accepted_draft_tokens: int
    page_seconds: float
    tenant_page_seconds: dict[str, float]
    steps: int
    step_seconds: float
    step_part_seconds: dict[str, float]
    step_durations: Histogram
    step_tokens: Histogram
    step_sequences: Histogram
    audit_failures: int
    adapter_requests: list[AdapterRequests] = []

    @property
    def num_preemptions(self) -> int:
        return sum(one.count for one in self.preemptions)

    @property
    def num_swaps(self) -> int:
        return sum(one.count for one in self.preemptions if one.kind == "swap")


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """Everything one step produced, in one message. ``stats`` come with the last before it falls idle, and at times."""

    deltas: list[RequestDelta]
    stats: EngineStats | None = None


class StatsRead(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """The answer to a `ReadStats`."""

    query_id: int
    stats: EngineStats


class RequestExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request stands; see `scheduler.explanation.Explanation`, whose sentences are in ``text``."""

    request_id: str
    status: RequestStatus
    text: str
    seconds_since_arrival: float
    position: int | None
    expected_start_seconds: float | None
    wait_reason: WaitReason | None
    wanted_pages: int
    available_pages: int
    num_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    num_overtakers: int
    preemptions: list[PreemptionNote]


class Explained(msgspec.Struct, frozen=True, kw_only=True, tag="explained"):
    """The answer to an `ExplainRequest`: None for a request that is not known, or no longer."""

    query_id: int
    explanation: RequestExplanation | None


class SequenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sequence stands, what it has cost so far, and by layer group its page ids in the order of positions."""

    explanation: RequestExplanation
    ledger: Ledger
    pages: dict[str, list[int]]


class SequenceRead(msgspec.Struct, frozen=True, tag="sequence"):
    """The answer to a `ReadSequence`: None for a sequence that is not known, or no longer."""

    query_id: int
    report: SequenceReport | None


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Progress of start-up: ``done`` of ``total`` bytes of the named stage."""

    stage: str
    done: int
    total: int


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine serves: what it loaded and how much memory it carved into pages.

    ``weight_form`` is what matrices are kept as, in words for a user. ``packed_weights`` is the file that they come
    from packed, if an earlier start has kept them so.
    """

    device: str
    dtype: str
    kv_dtype: str
    threads: int
    attention_backend: str
    weight_form: str
    weight_bytes: int
    kv_bytes: int
    num_pages: int
    page_bytes: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int
    vocab_size: int
    hidden_size: int
    layer_windows: list[int | None]
    eos_token_ids: list[int]
    stage_seconds: dict[str, float]
    warnings: list[str]
    stats: EngineStats
    adapters: list[AdapterReport] = []
    packed_weights: str | None = None


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot start or go on; ``message`` is one sentence for the user."""

    message: str


Query = ExplainRequest | ReadStats | ReadPages | ReadPage | ReadSequence | LoadAdapter | UnloadAdapter
ToEngine = TokenTable | EngineRequest | AbortRequests | Query | Shutdown
Answer = StatsRead | Explained | PagesRead | PageRead | SequenceRead | AdapterAnswer
FromEngine = StepOutput | Answer | LoadProgress | EngineReady | EngineFailed
