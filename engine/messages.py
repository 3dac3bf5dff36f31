"""What the API process and the engine process say to each other, and nothing else.

Plain msgspec structs, encoded as MessagePack: no torch, no pickles, no callbacks. `EngineClient` and the engine process
exchange them as length-prefixed frames.
"""

from __future__ import annotations

import msgspec

from scheduler.request import FinishReason


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn and when to stop; validated by the API before it gets here.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 and ``min_p`` 0 switch their filters off. ``seed`` fixes
    the request's own generator; None draws one. ``stop_token_ids`` end the request beside the model's EOS ids, which
    ``ignore_eos`` switches off. ``rank`` asks for the log probabilities of the tokens, summed, to choose among several
    samples.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    rank: bool = False


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """One sequence to generate: token ids in, token ids out.

    ``children`` are ids of further samples of the same prompt, which share its pages. ``cache_salt`` keeps its pages
    from being found under any other salt. ``rotates``: at the end of the context, drop the middle and go on.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    children: list[str] = []
    cache_salt: str = ""
    rotates: bool = False


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these requests in whatever state they are; unknown ids are ignored."""

    request_ids: list[str]


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Leave the step loop and exit."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What a request cost: pages at their peak, pages x seconds, and tokens that were, or were not, computed for it."""

    peak_pages: int
    page_seconds: float
    cached_tokens: int
    recomputed_tokens: int
    rotations: int
    swaps: int
    preempted_by: list[str]


class RequestDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request in one step; ``finish_reason`` only on its last.

    ``stop_token_id`` names the id that ended the request when it was one of its ``stop_token_ids``; it is None for EOS.
    ``num_cached_tokens`` counts prompt tokens read from pages instead of computed, as of first admission.
    ``logprob`` sums the log probabilities of ``token_ids`` where ``rank`` asked for it. ``ledger`` comes with the
    last delta of a request that ran. ``error`` explains a finish reason of ERROR.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    logprob: float = 0.0
    ledger: Ledger | None = None
    error: str | None = None


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


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """State of pages and queues after a step, with counters since the engine started.

    Pages: ``pages_free + sum(cached) + sum(held) == pages_total``.
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
    preemptions: int
    swaps: int
    rotations: int
    prompt_tokens: int
    cached_prompt_tokens: int
    missed_prompt_tokens: dict[str, int]
    recomputed_tokens: int
    generation_tokens: int
    page_seconds: float
    steps: int
    step_seconds: float
    audit_failures: int


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """Everything one step produced, in one message."""

    deltas: list[RequestDelta]
    stats: EngineStats


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Progress of start-up: ``done`` of ``total`` bytes of the named stage."""

    stage: str
    done: int
    total: int


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine serves: what it loaded and how much memory it carved into pages."""

    device: str
    dtype: str
    kv_dtype: str
    threads: int
    attention_backend: str
    weight_bytes: int
    kv_bytes: int
    num_pages: int
    page_bytes: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    layer_windows: list[int | None]
    eos_token_ids: list[int]
    stage_seconds: dict[str, float]
    warnings: list[str]
    stats: EngineStats


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot start or go on; ``message`` is one sentence for the user."""

    message: str


ToEngine = EngineRequest | AbortRequests | Shutdown
FromEngine = StepOutput | LoadProgress | EngineReady | EngineFailed
