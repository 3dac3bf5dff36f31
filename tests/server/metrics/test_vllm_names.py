"""Boards and gateways that ask for vLLM's names find them, with the numbers that our own have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.adapter_messages import AdapterRequests
from engine.messages import PreemptionCount
from scheduler.request import FinishReason
from server.app import create_app
from server.metrics.vllm_names import VLLM_NAMES
from server.state import ServerState

# Written down from the boards that query them, not from our mapping: the name and labels of each series.
GAUGES = {
    "num_requests_running": (),
    "num_requests_waiting": (),
    "num_requests_waiting_by_reason": ("reason",),
    "kv_cache_usage_perc": (),
    "lora_requests_info": ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    "cache_config_info": ("block_size", "cache_dtype", "enable_prefix_caching", "num_cpu_blocks", "num_gpu_blocks"),
    "gpu_cache_usage_perc": (),
}
COUNTERS = {
    "prefix_cache_queries_total": (),
    "prefix_cache_hits_total": (),
    "num_preemptions_total": (),
    "prompt_tokens_total": (),
    "prompt_tokens_by_source_total": ("source",),
    "prompt_tokens_cached_total": (),
    "prompt_tokens_recomputed_total": (),
    "generation_tokens_total": (),
    "request_success_total": ("finished_reason",),
    "spec_decode_num_drafts_total": (),
    "spec_decode_num_draft_tokens_total": (),
    "spec_decode_num_accepted_tokens_total": (),
    "gpu_prefix_cache_queries_total": (),
    "gpu_prefix_cache_hits_total": (),
}
HISTOGRAMS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
COMMON = {"model_name": "org/tiny", "engine": "0"}


class Scrapes:
    """/metrics of a server that shows vLLM's names too."""

    def __init__(self, state: ServerState) -> None:
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=create_app(state)), base_url="http://octavo")

    async def families(self) -> list[Any]:
        return list(text_string_to_metric_families((await self.http.get("/metrics")).text))

    async def value(self, name: str, **labels: str) -> float:
        [value] = [
            sample.value
            for family in await self.families()
            for sample in family.samples
            if sample.name == f"vllm:{name}" and sample.labels == COMMON | labels
        ]
        return float(value)


@pytest.fixture
async def scrapes(engine, byte_tokenizer) -> AsyncIterator[Scrapes]:
    scrapes = Scrapes(ServerState(engine, "org/tiny", tokenizer=byte_tokenizer, metrics_compat="vllm"))
    yield scrapes
    await scrapes.http.aclose()


async def test_every_name_is_there_with_its_type_and_labels_before_the_first_request(scrapes) -> None:
    found = [family for family in await scrapes.families() if family.name.startswith("vllm:")]
    series = {
        (sample.name, family.type, tuple(sorted(sample.labels.keys() - COMMON.keys())))
        for family in found
        for sample in family.samples
    }
    expected = {(f"vllm:{name}", "gauge", labels) for name, labels in GAUGES.items()}
    expected |= {(f"vllm:{name}", "counter", labels) for name, labels in COUNTERS.items()}
    expected |= {(f"vllm:{name}_bucket", "histogram", ("le",)) for name in HISTOGRAMS}
    expected |= {(f"vllm:{name}_{part}", "histogram", ()) for name in HISTOGRAMS for part in ("sum", "count")}
    assert series == expected
    assert len(VLLM_NAMES) == len(GAUGES) + len(COUNTERS) + len(HISTOGRAMS) == len(found)
    assert all(sample.labels.items() >= COMMON.items() for family in found for sample in family.samples)


async def test_what_waits_for_room_and_what_waits_for_something_else_add_up(scrapes, engine) -> None:
    reasons = {"pages": 3, "sequences": 2, "tokens": 1, "preemption": 4, "behind": 40, "grammar": 5}
    engine.stats = engine.make_stats(waiting=55, waiting_by_reason=reasons, running=7)
    assert await scrapes.value("num_requests_running") == 7
    assert await scrapes.value("num_requests_waiting") == 55
    assert await scrapes.value("num_requests_waiting_by_reason", reason="capacity") == 50
    assert await scrapes.value("num_requests_waiting_by_reason", reason="deferred") == 5


async def test_adapters_in_use_are_listed_as_gateways_ask(scrapes, engine) -> None:
    def series() -> dict[str, str]:
        [labels] = [sample.labels for family in families for sample in family.samples if sample.name == name]
        return {key: value for key, value in labels.items() if key not in COMMON}

    name = "vllm:lora_requests_info"
    families = await scrapes.families()
    assert series() == {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    counts = [("b", 2, 0), ("a", 1, 1), ("c", 0, 3), ("d", 0, 0)]
    requests = [AdapterRequests(name=name, running=running, waiting=waiting) for name, running, waiting in counts]
    engine.stats = engine.make_stats(adapter_requests=requests)
    families = await scrapes.families()
    assert series() == {"max_lora": "4", "running_lora_adapters": "a,b", "waiting_lora_adapters": "a,c"}


async def test_pages_and_their_layout_are_told_as_gateways_ask(scrapes, engine) -> None:
    engine.stats = engine.make_stats(pages_free=15, groups=[engine.make_group("full", held=5)])
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        assert await scrapes.value(name) == 0.25
    layout = {"block_size": "16", "num_gpu_blocks": "20", "cache_dtype": "int8", "num_cpu_blocks": "0"}
    assert await scrapes.value("cache_config_info", enable_prefix_caching="true", **layout) == 1


async def test_tokens_are_told_by_source_and_nothing_comes_from_other_servers(scrapes, engine) -> None:
    engine.stats = engine.make_stats(
        prompt_tokens=100,
        cached_prompt_tokens=30,
        missed_prompt_tokens={"never_seen": 70},
        recomputed_tokens=8,
        generation_tokens=55,
        preemptions=[
            PreemptionCount(kind="swap", cause="decode", count=2),
            PreemptionCount(kind="recompute", cause="prefill", count=3),
        ],
        drafts=4,
        draft_tokens=12,
        accepted_draft_tokens=9,
    )
    sources = {"local_compute": 70, "local_cache_hit": 30, "external_kv_transfer": 0}
    for source, tokens in sources.items():
        assert await scrapes.value("prompt_tokens_by_source_total", source=source) == tokens
    values = {
        "prompt_tokens_total": 100,
        "prompt_tokens_cached_total": 30,
        "prompt_tokens_recomputed_total": 8,
        "generation_tokens_total": 55,
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 30,
        "gpu_prefix_cache_queries_total": 100,
        "gpu_prefix_cache_hits_total": 30,
        "num_preemptions_total": 5,
        "spec_decode_num_drafts_total": 4,
        "spec_decode_num_draft_tokens_total": 12,
        "spec_decode_num_accepted_tokens_total": 9,
    }
    assert {name: await scrapes.value(name) for name in values} == values


async def test_ends_and_histograms_are_those_of_our_own_names(scrapes, engine) -> None:
    body = {"model": "org/tiny", "prompt": "hi", "max_tokens": 3}
    engine.answer("ab", FinishReason.STOP, ledger=engine.make_ledger())
    engine.answer("abc", ledger=engine.make_ledger())
    assert (await scrapes.http.post("/v1/completions", json=body | {"n": 2})).status_code == 200
    assert await scrapes.value("request_success_total", finished_reason="stop") == 1
    assert await scrapes.value("request_success_total", finished_reason="length") == 1
    assert await scrapes.value("request_success_total", finished_reason="abort") == 0
    for name in ("request_prompt_tokens", "request_params_max_tokens", "request_queue_time_seconds"):
        assert await scrapes.value(f"{name}_count") == 2
    assert await scrapes.value("request_generation_tokens_sum") == 6
    assert await scrapes.value("request_params_n_sum") == 2
    assert await scrapes.value("request_params_n_count") == 1
    assert await scrapes.value("request_inference_time_seconds_sum") == 2 * (0.25 + 0.625)
    assert await scrapes.value("request_prefill_time_seconds_bucket", le="0.3") == 2


async def test_without_the_flag_no_name_is_vllms(api) -> None:
    assert "vllm:" not in (await api.http.get("/metrics")).text
