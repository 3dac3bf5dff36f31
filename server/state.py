"""ServerState: what the endpoints share, and nothing they could compute themselves.

Made once by whoever starts a server, then passed to ``create_app``. While a model loads, ``tokenizer`` is None.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.client import EngineClient, EngineState
from engine.messages import EngineReady
from server.auth import AdminKey, ApiKeys
from server.dashboard.page_map_feed import PageMapFeed
from server.errors import model_not_found, unavailable
from server.grammar_checker import GrammarChecker
from server.metrics.metrics import Metrics
from server.observation.journal import RequestJournal
from server.openai.responses.response_store import ResponseStore
from server.options import DEFAULT_SILENCE_LIMIT_SECONDS, NONE, VLLM
from server.request_ends import RequestEnds
from server.request_registry import RequestRegistry
from server.text.chat_template import ChatTemplate
from server.text.tokenizer import Tokenizer

MAX_REQUEST_BYTES = 8 * 1024 * 1024
REQUEST_BYTES_PER_TOKEN = 32  # of the context: several times what a token takes as text or as an id
REQUEST_BYTES_BESIDE_PROMPT = 64 * 1024


@dataclass(slots=True)
class ServerState:
    """One served model and its engine; ``request_ends`` tells observers how sequences end in it.

    ``silence_limit``: seconds an engine with work may send nothing before /health calls it hung. ``draining``: a
    shutdown has begun, so that new requests are refused while running ones finish. ``stream_queue_position``: streams
    that wait are told their place. ``tool_use_template`` is that of chats with tools, where the model has one of its
    own for them. ``tool_call_parser`` and ``reasoning_parser`` are names of formats, "auto" or "none".
    ``trusts_request_templates``: chats may bring templates. ``allowed_origins``: of pages whose scripts may ask.
    ``metrics_compat`` is the server whose metric names are shown too, or "none". ``loads_adapters``: clients may load
    and unload adapters.
    """

    client: EngineClient
    served_model_name: str
    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
    tool_use_template: ChatTemplate | None = None
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    trusts_request_templates: bool = False
    silence_limit: float = DEFAULT_SILENCE_LIMIT_SECONDS
    max_request_bytes: int | None = None
    api_keys: ApiKeys = field(default_factory=ApiKeys)
    admin_key: AdminKey = field(default_factory=AdminKey)
    scheduling_policy: str = "fcfs"
    stream_queue_position: bool = False
    allowed_origins: tuple[str, ...] = ()
    metrics_compat: str = NONE
    loads_adapters: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    requests: RequestRegistry = field(default_factory=RequestRegistry)
    request_ends: RequestEnds = field(default_factory=RequestEnds)
    journal: RequestJournal = field(default_factory=RequestJournal)
    responses: ResponseStore = field(default_factory=ResponseStore)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    metrics: Metrics = field(init=False)
    page_map: PageMapFeed = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(
            self.client,
            self.served_model_name,
            tenants=self.api_keys.tenants,
            with_vllm_names=self.metrics_compat == VLLM,
        )
        self.request_ends.subscribe(self.metrics.observe_engine_end)
        self.request_ends.subscribe(self.journal.sequence_ended)
        self.client.on_end = self.request_ends.tell
        self.page_map = PageMapFeed(self.client, self.requests, self.served_model_name)

    @property
    def is_ready(self) -> bool:
        """Whether a new request would be accepted now."""
        return self.client.state is EngineState.READY and self.tokenizer is not None and not self.draining

    def body_limit(self) -> int:
        """Most bytes of a request body: what was chosen, or what the model's context can need."""
        if self.max_request_bytes is not None:
            return self.max_request_bytes
        if self.client.ready is None:
            return MAX_REQUEST_BYTES
        needed = self.client.ready.max_model_len * REQUEST_BYTES_PER_TOKEN + REQUEST_BYTES_BESIDE_PROMPT
        return min(MAX_REQUEST_BYTES, needed)

    def require_ready(self) -> tuple[EngineReady, Tokenizer]:
        """What a new request needs; ApiError 503 when it cannot be served now."""
        if self.draining:
            raise unavailable("the server is shutting down and takes no new requests", "shutting_down")
        if self.client.state is not EngineState.READY or self.client.ready is None or self.tokenizer is None:
            raise unavailable(f"the engine is not serving now: it is {self.client.state.value}", "engine_unavailable")
        return self.client.ready, self.tokenizer

    def require_movement(self) -> None:
        """ApiError 503 while an engine that has work has said nothing for longer than the limit."""
        seconds = self.client.silent_seconds
        if seconds > self.silence_limit:
            raise unavailable(f"the engine has work and has been silent for {seconds:.0f} seconds", "engine_silent")

    def require_model(self, model: str) -> str:
        """The name of the adapter that ``model`` is, "" for the model itself; ApiError 404 for what is not served."""
        if model == self.served_model_name:
            return ""
        if model not in self.client.adapters:
            raise model_not_found(model, self.served_model_name, len(self.client.adapters))
        return model
