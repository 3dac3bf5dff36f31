"""ModelOptions and ServeOptions: what a user chose about a model's API and its server, beside the EngineConfig."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import urlsplit

from engine.config import ConfigError, EngineConfig
from server.text.reasoning import REASONING_TAGS
from server.text.tool_calls.formats import FORMATS

DEFAULT_SILENCE_LIMIT_SECONDS = 30.0
AUTO = "auto"
NONE = "none"
VLLM = "vllm"
MAX_NAME_CHARACTERS = 256  # of an adapter
TRACING_MODULE = "opentelemetry.exporter.otlp.proto.http"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Choices about one model and its API. ``model`` None is the demo model; ``engine.model`` is filled in later.

    ``silence_limit`` is in seconds. ``engine.tenant_weights`` are of the tenants that ``api_keys`` name, in their order
    (see `server.tenant`), or there are none. ``offline``: a hub id is looked for in the cache alone. ``lora_modules``
    are names of adapters and where they are, paths or hub ids; ``enable_lora``: others may come while the server runs.
    """

    model: str | None
    revision: str | None = None
    offline: bool = False
    served_model_name: str | None = None
    chat_template: str | None = None
    trust_request_chat_template: bool = False
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    max_request_bytes: int | None = None
    silence_limit: float = DEFAULT_SILENCE_LIMIT_SECONDS
    stream_queue_position: bool = False
    allowed_origins: tuple[str, ...] = ()
    metrics_compat: str = NONE
    lora_modules: tuple[tuple[str, str], ...] = ()
    enable_lora: bool = False
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    engine: EngineConfig

    def validate(self) -> None:
        """Raise ConfigError for the first setting that cannot work."""
        if self.revision is not None and self.model is None:
            raise ConfigError(f"--revision {self.revision}: needs a MODEL, a hub id, of which to take that revision")
        if self.served_model_name == "":
            raise ConfigError("--served-model-name: must not be empty")
        _check_parser("--tool-call-parser", self.tool_call_parser, FORMATS)
        _check_parser("--reasoning-parser", self.reasoning_parser, REASONING_TAGS)
        if self.max_request_bytes is not None and self.max_request_bytes < 1:
            raise ConfigError(f"--max-request-bytes {self.max_request_bytes}: must be at least 1")
        if not self.silence_limit > 0:
            raise ConfigError(f"--engine-silence-limit {self.silence_limit}: must be above 0")
        for key in self.api_keys:
            _check_key("--api-key", key)
        if self.admin_key is not None:
            _check_key("--admin-key", self.admin_key)
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ConfigError(f"--allowed-origin {origin}: must be * or like https://example.com, without a path")
        if self.metrics_compat not in (NONE, VLLM):
            raise ConfigError(f"--metrics-compat {self.metrics_compat}: must be {VLLM} or {NONE}")
        _check_adapters(self.lora_modules)
        weights = self.engine.tenant_weights
        if weights and self.engine.scheduling_policy != "fair":
            raise ConfigError("--tenant-weights: needs --scheduling-policy fair")
        if weights and len(weights) != len(self.api_keys):
            raise ConfigError(
                f"--tenant-weights: {len(weights)} weights for {len(self.api_keys)} API keys: give one each"
            )
        self.engine.validate()


def _check_adapters(modules: Collection[tuple[str, str]]) -> None:
    names = [name for name, _ in modules]
    for name, path in modules:
        if not is_adapter_name(name) or not path:
            raise ConfigError(f"--lora-modules {name}={path}: must be NAME=PATH, the name without spaces")
        if names.count(name) > 1:
            raise ConfigError(f"--lora-modules {name}: given more than once")


def is_adapter_name(name: str) -> bool:
    """Whether requests could choose an adapter by it."""
    return len(name) <= MAX_NAME_CHARACTERS and name.isprintable() and bool(name) and " " not in name


def _check_key(flag: str, key: str) -> None:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{flag}: a key is one or more printable ASCII characters without spaces")


def _check_parser(flag: str, name: str, known: Collection[str]) -> None:
    if name not in (AUTO, NONE, *known):
        raise ConfigError(f"{flag} {name}: must be {AUTO}, {', '.join(known)} or {NONE}")


def _check_tracing(endpoint: str) -> None:
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError("--otlp-traces-endpoint: must be a URL such as http://127.0.0.1:4318/v1/traces")
    try:
        found = find_spec(TRACING_MODULE) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ConfigError("--otlp-traces-endpoint: needs packages that pip install 'octavo[tracing]' brings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(ModelOptions):
    """Choices of one `octavo serve`; ``shutdown_timeout`` is in seconds.

    ``log_requests``: one line for each request that is over. ``otlp_traces_endpoint``: URL that spans are sent to.
    """

    host: str
    port: int
    shutdown_timeout: float
    log_requests: bool = True
    otlp_traces_endpoint: str | None = None

    def validate(self) -> None:
        """Raise ConfigError for the first setting that cannot work."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port}: must be from 0 to 65535")
        if not self.shutdown_timeout >= 0:
            raise ConfigError(f"--shutdown-timeout {self.shutdown_timeout}: must not be negative")
        if self.otlp_traces_endpoint is not None:
            _check_tracing(self.otlp_traces_endpoint)
        ModelOptions.validate(self)
