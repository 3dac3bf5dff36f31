"""vLLM's metric names over Octavo's numbers, for dashboards and gateways that query those (`--metrics-compat vllm`).

Each name is a view of families of the catalogue, made from what they hold in the same scrape, so that nothing is
counted twice. Every series has the labels ``model_name`` and ``engine``. What has no meaning here (KV from other
servers) is there with 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from scheduler.request import FinishReason, WaitReason
from server.metrics import catalogue
from server.metrics.metric_spec import MetricKind, MetricSpec

PREFIX = "vllm:"
ENGINE = "0"  # there is one
LORA_REQUESTS = "lora_requests_info"  # whose one series says everything in its labels, and when that was

Renaming = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VllmName:
    """``name`` shows the numbers of ``source``, or 0 where there is none.

    Labels are added up, except those of which ``labels`` gives the name here for the name there, with the values that
    ``values`` give for those there. ``nothing`` are series that are always 0, by their own labels.
    """

    name: str
    source: MetricSpec | None
    labels: Renaming = field(default_factory=dict)
    values: Renaming = field(default_factory=dict)
    nothing: tuple[Renaming, ...] = ()

    @property
    def kind(self) -> MetricKind:
        return MetricKind.GAUGE if self.source is None else self.source.kind

    @property
    def help(self) -> str:
        """What it shows, in terms of the metric that has it."""
        return "Always 0: there is no such thing here." if self.source is None else f"As {self.source.name}."

    @property
    def series(self) -> str:
        """The name in the text of a scrape, without the suffixes of a histogram."""
        return f"{PREFIX}{self.name}_total" if self.kind is MetricKind.COUNTER else f"{PREFIX}{self.name}"


_DEFERRED = {WaitReason.GRAMMAR}  # waits for something else than room
_WAIT_REASONS = {str(reason): "deferred" if reason in _DEFERRED else "capacity" for reason in WaitReason}
_OUTCOMES = {str(reason): str(reason) for reason in FinishReason}
_CACHE_LABELS = {
    "block_size": "block_size",
    "num_pages": "num_gpu_blocks",
    "kv_dtype": "cache_dtype",
    "prefix_caching": "enable_prefix_caching",
    "host_pages": "num_cpu_blocks",
}

VLLM_NAMES: tuple[VllmName, ...] = (
    VllmName("num_requests_running", catalogue.REQUESTS_RUNNING),
    VllmName("num_requests_waiting", catalogue.REQUESTS_WAITING),
    VllmName("num_requests_waiting_by_reason", catalogue.REQUESTS_WAITING, {"reason": "reason"}, _WAIT_REASONS),
    VllmName("kv_cache_usage_perc", catalogue.KV_USAGE_RATIO),
    VllmName("gpu_cache_usage_perc", catalogue.KV_USAGE_RATIO),
    VllmName(LORA_REQUESTS, catalogue.ADAPTER_REQUESTS),
    VllmName("cache_config_info", catalogue.CACHE_CONFIG_INFO, _CACHE_LABELS),
    VllmName("prefix_cache_queries", catalogue.PREFIX_CACHE_QUERIES),
    VllmName("prefix_cache_hits", catalogue.PREFIX_CACHE_HITS),
    VllmName("gpu_prefix_cache_queries", catalogue.PREFIX_CACHE_QUERIES),
    VllmName("gpu_prefix_cache_hits", catalogue.PREFIX_CACHE_HITS),
    VllmName("num_preemptions", catalogue.PREEMPTIONS),
    VllmName("prompt_tokens", catalogue.PROMPT_TOKENS),
    VllmName(
        "prompt_tokens_by_source",
        catalogue.PROMPT_TOKENS_BY_SOURCE,
        {"source": "source"},
        {"computed": "local_compute", "cached": "local_cache_hit"},
        nothing=({"source": "external_kv_transfer"},),
    ),
    VllmName("prompt_tokens_cached", catalogue.PREFIX_CACHE_HITS),
    VllmName("prompt_tokens_recomputed", catalogue.RECOMPUTED_TOKENS),
    VllmName("generation_tokens", catalogue.GENERATION_TOKENS),
    VllmName("request_success", catalogue.REQUESTS, {"outcome": "finished_reason"}, _OUTCOMES),
    VllmName("spec_decode_num_drafts", catalogue.SPEC_DRAFTS),
    VllmName("spec_decode_num_draft_tokens", catalogue.SPEC_DRAFT_TOKENS),
    VllmName("spec_decode_num_accepted_tokens", catalogue.SPEC_ACCEPTED_TOKENS),
    VllmName("request_prompt_tokens", catalogue.REQUEST_PROMPT_TOKENS),
    VllmName("request_generation_tokens", catalogue.REQUEST_GENERATION_TOKENS),
    VllmName("request_params_n", catalogue.REQUEST_SAMPLES),
    VllmName("request_params_max_tokens", catalogue.REQUEST_MAX_TOKENS),
    VllmName("iteration_tokens_total", catalogue.STEP_TOKENS),
    VllmName("time_to_first_token_seconds", catalogue.TTFT),
    VllmName("inter_token_latency_seconds", catalogue.ITL),
    VllmName("time_per_output_token_seconds", catalogue.ITL),
    VllmName("request_time_per_output_token_seconds", catalogue.TPOT),
    VllmName("e2e_request_latency_seconds", catalogue.E2E),
    VllmName("request_queue_time_seconds", catalogue.QUEUE_TIME),
    VllmName("request_inference_time_seconds", catalogue.INFERENCE_TIME),
    VllmName("request_prefill_time_seconds", catalogue.PREFILL_TIME),
    VllmName("request_decode_time_seconds", catalogue.DECODE_TIME),
)


def vllm_families(families: Iterable[Metric], model_name: str) -> Iterator[Metric]:
    """The families under vLLM's names that show what ``families``, those of a whole scrape, hold."""
    own = {family.name: family for family in families}
    common = {"model_name": model_name, "engine": ENGINE}
    for entry in VLLM_NAMES:
        source = None if entry.source is None else own[entry.source.name]
        yield _view(entry, source, common)


def _view(entry: VllmName, source: Metric | None, common: Renaming) -> Metric:
    name = PREFIX + entry.name
    if source is not None and entry.kind is MetricKind.HISTOGRAM:
        view = Metric(name, entry.help, "histogram")
        view.samples = [
            sample._replace(name=name + sample.name.removeprefix(source.name), labels={**common, **sample.labels})
            for sample in source.samples
        ]
        return view
    totals: dict[tuple[tuple[str, str], ...], float] = {tuple(labels.items()): 0.0 for labels in entry.nothing}
    for sample in () if source is None else source.samples:
        labels = tuple(_renamed(entry, sample))
        totals[labels] = totals.get(labels, 0.0) + sample.value
    make = CounterMetricFamily if entry.kind is MetricKind.COUNTER else GaugeMetricFamily
    view = make(name, entry.help)
    if entry.name == LORA_REQUESTS and source is not None:
        totals = {tuple(_lora_labels(source).items()): time.time()}
    view.samples = [Sample(entry.series, {**common, **dict(labels)}, value) for labels, value in totals.items()]
    return view


def _lora_labels(source: Metric) -> dict[str, str]:
    """The adapters that requests use, separated by commas; any number of them can be used at once."""
    adapters = {sample.labels["adapter"] for sample in source.samples}
    using = {
        state: sorted(
            sample.labels["adapter"] for sample in source.samples if sample.labels["state"] == state and sample.value
        )
        for state in ("running", "waiting")
    }
    return {
        "max_lora": str(len(adapters)),
        "running_lora_adapters": ",".join(using["running"]),
        "waiting_lora_adapters": ",".join(using["waiting"]),
    }


def _renamed(entry: VllmName, sample: Sample) -> Iterator[tuple[str, str]]:
    for ours, theirs in entry.labels.items():
        value = sample.labels[ours]
        yield theirs, entry.values.get(value, value)
