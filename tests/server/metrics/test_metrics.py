"""What /metrics says. Ids like I07 name cases known from other servers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shutil
import subprocess
from itertools import product

import pytest
from prometheus_client.parser import text_string_to_metric_families

from block_manager.prefix_index import MissReason
from engine.client import EngineState
from engine.messages import EngineRequest, PreemptionCount
from engine.sampling_params import SamplingParams
from scheduler.preemption_record import PreemptionCause, PreemptionKind
from scheduler.refusal import RefusalReason
from scheduler.request import FinishReason, WaitReason
from server.generation.generation import Generation
from server.generation.output_text import TextRules
from server.generation.prompt_reading import PromptReading
from server.metrics.catalogue import (
    CATALOGUE,
    MISS_REASONS,
    PREEMPTION_CAUSES,
    PREEMPTION_KINDS,
    PREEMPTIONS,
    REFUSAL_REASONS,
    ROTATIONS,
    WAIT_REASONS,
)
from server.metrics.engine_counters import EngineCounters
from server.metrics.metric_spec import MetricKind


def preemptions(swaps_for_decodes: int) -> list[PreemptionCount]:
    return [
        PreemptionCount(kind="swap", cause="decode", count=swaps_for_decodes),
        PreemptionCount(kind="recompute", cause="prefill", count=1),
    ]


async def samples_of(api) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample of a scrape by its name and the values of its labels, in the order of their names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families((await api.http.get("/metrics")).text)
        for sample in family.samples
    }


async def test_i07_every_series_is_there_before_the_first_request_and_0(api, engine, monkeypatch) -> None:
    monkeypatch.setattr(type(engine), "pid", os.getpid())
    engine.ready = engine.stats = None
    engine.state = EngineState.STARTING
    samples = await samples_of(api)
    told_otherwise = {"octavo_build_info": 1.0, "octavo_kv_exhaustion_seconds": math.inf}
    for (name, labels), value in samples.items():
        if "process_" not in name:
            assert value == told_otherwise.get(name, 0.0), (name, labels)
    known = set(samples)
    for spec in CATALOGUE:
        for labels in spec.known_label_sets:
            by_name = tuple(value for _, value in sorted(zip(spec.labels, labels, strict=True)))
            assert spec.kind is MetricKind.HISTOGRAM or (spec.series[0], by_name) in known
        if spec.kind is MetricKind.HISTOGRAM:
            bounds = [labels[0] for name, labels in samples if name == f"{spec.name}_bucket"]
            assert [float(bound) for bound in bounds] == [*spec.buckets, math.inf]
    assert ("octavo_kv_pages", ("pool", "free")) in known


async def test_what_was_loaded_is_told_once_it_is(api, engine) -> None:
    model = 'octavo_model_info{attention_backend="scripted",device="cpu",dtype="float32",max_model_len="512",'
    assert await api.metric(model + 'model_name="org/tiny",weight_form="int8"}') == 1
    cache = 'octavo_cache_config_info{block_size="16",host_pages="0",kv_dtype="int8",num_pages="20",page_bytes="1024",'
    assert await api.metric(cache + 'prefix_caching="true"}') == 1
    engine.ready = None
    assert "octavo_model_info{" not in (await api.http.get("/metrics")).text


async def test_every_reason_kind_and_cause_is_there_from_the_start(api, engine) -> None:
    engine.ready = engine.stats = None
    for reason in WaitReason:
        assert await api.metric(f'octavo_requests_waiting{{reason="{reason}"}}') == 0
    for reason in RefusalReason:
        assert await api.metric(f'octavo_refusals_total{{reason="{reason}"}}') == 0
    for kind, cause in product(PreemptionKind, PreemptionCause):
        assert await api.metric(f'octavo_preemptions_total{{cause="{cause}",kind="{kind}"}}') == 0
    assert (list(WAIT_REASONS.values), list(REFUSAL_REASONS.values)) == (list(WaitReason), list(RefusalReason))
    assert list(PREEMPTION_KINDS.values) == list(PreemptionKind)
    assert list(PREEMPTION_CAUSES.values) == list(PreemptionCause)


async def test_every_reason_of_a_miss_and_every_state_of_a_host_page_is_there_from_the_start(api, engine) -> None:
    engine.ready = engine.stats = None
    for reason in MissReason:
        assert await api.metric(f'octavo_prefix_cache_missed_tokens_total{{reason="{reason}"}}') == 0
    for state in ("free", "prefix", "swapped"):
        assert await api.metric(f'octavo_host_pages{{state="{state}"}}') == 0
    assert list(MISS_REASONS.values) == list(MissReason)


async def test_i01_what_is_exported_is_the_catalogue_in_its_order(api) -> None:
    families = list(text_string_to_metric_families((await api.http.get("/metrics")).text))
    exported = [(family.name, family.documentation, family.type) for family in families]
    kinds = {MetricKind.INFO: "gauge"}
    expected = [(spec.name, spec.help, kinds.get(spec.kind, spec.kind.value)) for spec in CATALOGUE]
    there_is_no_engine_process = {name for name, *_ in expected if name.startswith("octavo_engine_process_")}
    assert len(there_is_no_engine_process) == 6
    assert exported == [one for one in expected if one[0] not in there_is_no_engine_process]


async def test_the_engine_process_is_measured_beside_the_api_process(api, engine, monkeypatch) -> None:
    monkeypatch.setattr(type(engine), "pid", os.getpid())
    families = list(text_string_to_metric_families((await api.http.get("/metrics")).text))
    assert [family.name for family in families] == [spec.name for spec in CATALOGUE]
    assert await api.metric("octavo_engine_process_resident_memory_bytes") > 10_000_000
    started = await api.metric("process_start_time_seconds")
    assert await api.metric("octavo_engine_process_start_time_seconds") == started


async def test_names_tell_type_and_unit_as_prometheus_asks(api) -> None:
    await api.completion()
    text = (await api.http.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    assert "_created" not in text
    for family in families:
        assert re.fullmatch("(octavo|process)(_[a-z0-9]+)+", family.name)
        assert family.documentation.endswith(".")
        words = family.name.split("_")
        assert not {"counter", "gauge", "histogram", "milliseconds", "ms", "kib", "gib", "percent"} & set(words)
        if family.type == "counter":
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)
        else:
            assert words[-1] not in ("total", "count", "sum", "bucket")
        if family.type == "histogram":
            assert words[-1] in ("seconds", "tokens", "sequences", "samples")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian package prometheus)")
async def test_i05_promtool_finds_nothing_to_say_of_the_text(api, engine, monkeypatch) -> None:
    monkeypatch.setattr(type(engine), "pid", os.getpid())
    await api.completion()
    text = (await api.http.get("/metrics")).content
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_what_groups_share_and_waste_is_told_by_group(api, engine) -> None:
    engine.stats = engine.make_stats(
        groups=[
            engine.make_group("full", held=7, shared=3, evicted=11, held_slots=112, wasted_slots=28),
            engine.make_group("sliding", evicted=5),
        ],
        oldest_cached_seconds=12.5,
    )
    values = {"shared_pages": (3, 0), "held_slots": (112, 0), "wasted_slots": (28, 0), "wasted_slots_ratio": (0.25, 0)}
    values["evicted_pages_total"] = (11, 5)
    for name, (full, sliding) in values.items():
        assert await api.metric(f'octavo_kv_{name}{{group="full"}}') == full
        assert await api.metric(f'octavo_kv_{name}{{group="sliding"}}') == sliding
    assert await api.metric("octavo_kv_oldest_cached_seconds") == 12.5


async def test_host_pages_are_free_prefixes_or_swapped(api, engine) -> None:
    engine.stats = engine.make_stats(host_pages_total=10, host_pages_free=4, host_pages_swapped=1)
    assert await api.metric('octavo_host_pages{state="free"}') == 4
    assert await api.metric('octavo_host_pages{state="prefix"}') == 5
    assert await api.metric('octavo_host_pages{state="swapped"}') == 1


async def test_queries_of_the_prefix_cache_are_its_hits_and_its_misses(api, engine) -> None:
    missed = {"too_short": 1, "never_seen": 20, "evicted": 300, "salt": 4000, "disabled": 50_000}
    engine.stats = engine.make_stats(
        prompt_tokens=600_000 + sum(missed.values()), cached_prompt_tokens=600_000, missed_prompt_tokens=missed
    )
    for reason, tokens in missed.items():
        assert await api.metric(f'octavo_prefix_cache_missed_tokens_total{{reason="{reason}"}}') == tokens
    assert await api.metric("octavo_prefix_cache_hits_tokens_total") == 600_000
    assert await api.metric("octavo_prefix_cache_queries_tokens_total") == 604_321


async def test_pages_of_all_states_and_groups_add_up_to_the_pool(api, engine) -> None:
    engine.stats = engine.make_stats(
        pages_free=5,
        groups=[
            engine.make_group("full", cached=2, held=7),
            engine.make_group("sliding", cached=3, held=3),
        ],
        running=2,
    )
    pages = {
        '{group="pool",state="free"}': 5,
        '{group="full",state="cached"}': 2,
        '{group="full",state="held"}': 7,
        '{group="sliding",state="cached"}': 3,
        '{group="sliding",state="held"}': 3,
    }
    for labels, value in pages.items():
        assert await api.metric(f"octavo_kv_pages{labels}") == value
        assert await api.metric(f"octavo_kv_bytes{labels}") == value * 1024
    assert await api.metric("octavo_kv_pages_capacity") == sum(pages.values()) == 20
    assert await api.metric("octavo_kv_capacity_bytes") == 20 * 1024
    assert await api.metric("octavo_kv_used_bytes") == 10 * 1024
    assert await api.metric("octavo_kv_usage_ratio") == 0.5
    assert await api.metric("octavo_requests_running") == 2
    assert await api.metric("octavo_engine_up") == 1


async def test_i03_waiting_requests_are_told_by_why_they_wait(api, engine) -> None:
    reasons = {"pages": 3, "sequences": 2, "tokens": 1, "preemption": 0, "behind": 40}
    engine.stats = engine.make_stats(
        waiting=46, waiting_by_reason=reasons, queued_tokens=5_000, longest_wait_seconds=2.5, overtakes=7
    )
    for reason, count in reasons.items():
        assert await api.metric(f'octavo_requests_waiting{{reason="{reason}"}}') == count
    assert await api.metric("octavo_queued_tokens") == 5_000
    assert await api.metric("octavo_longest_wait_seconds") == 2.5
    assert await api.metric("octavo_overtakes_total") == 7


async def test_preemptions_are_told_by_kind_and_cause_and_never_go_back(api, engine) -> None:
    engine.stats = engine.make_stats(preemptions=preemptions(4))
    assert await api.metric('octavo_preemptions_total{cause="decode",kind="swap"}') == 4
    assert await api.metric('octavo_preemptions_total{cause="prefill",kind="recompute"}') == 1
    engine.ready = engine.make_ready()
    engine.stats = engine.make_stats(preemptions=preemptions(2))
    assert await api.metric('octavo_preemptions_total{cause="decode",kind="swap"}') == 6
    assert await api.metric('octavo_preemptions_total{cause="prefill",kind="recompute"}') == 2


async def test_a_scrape_asks_the_engine_how_things_are_now(api, engine) -> None:
    engine.stats = engine.make_stats(running=3, steps=10)
    engine.measured = engine.make_stats(running=5, steps=11)
    assert await api.metric("octavo_requests_running") == 5
    assert await api.metric("octavo_steps_total") == 11


async def test_a_scrape_of_an_engine_that_does_not_answer_shows_what_was_seen_last(api, engine, monkeypatch) -> None:
    monkeypatch.setattr("server.metrics.metrics.STATS_SECONDS", 0.0)
    engine.stats = engine.make_stats(running=3, steps=10)
    monkeypatch.setattr(engine, "read_stats", asyncio.Event().wait)
    for _ in range(2):
        assert await api.metric("octavo_requests_running") == 3
        assert await api.metric("octavo_steps_total") == 10


async def test_f17_requests_are_ended_refused_or_in_flight_and_nothing_else(api, engine) -> None:
    async def balance() -> tuple[float, int, float, float]:
        submitted = await api.metric("octavo_requests_submitted_total")
        outcomes = await api.outcomes()
        refused = await api.metric('octavo_refusals_total{reason="queue_full"}')
        in_flight = await api.metric("octavo_requests_in_flight")
        assert submitted == sum(outcomes.values()) + refused + in_flight
        return submitted, sum(outcomes.values()), refused, in_flight

    gate = asyncio.Event()
    engine.answer("abc").insert(1, gate)
    running = asyncio.create_task(api.completion())
    while not engine.requests:
        await asyncio.sleep(0)
    assert await balance() == (1, 0, 0, 1)
    engine.scripts += [[engine.failure("queue_full", retry_after=2.0)] for _ in range(3)]
    assert (await api.completion(n=3)).status_code == 429
    assert await balance() == (4, 0, 3, 1)
    assert await api.outcomes() == {}
    for code in ("queue_timeout", "timeout", "step_failed"):
        engine.scripts.append([engine.failure(code)])
        await api.completion()
    assert await balance() == (7, 3, 3, 1)
    assert await api.outcomes() == {"error": 3}
    gate.set()
    assert (await running).status_code == 200
    assert await balance() == (7, 4, 3, 0)
    for reason, count in {"queue_full": 3, "queue_timeout": 1, "timeout": 1}.items():
        assert await api.metric(f'octavo_refusals_total{{reason="{reason}"}}') == count
    assert await api.metric("octavo_e2e_request_latency_seconds_count") == 1


async def test_the_end_of_a_request_is_counted_before_anybody_has_read_it(api, engine, state, byte_tokenizer) -> None:
    engine.answer("a")
    request = EngineRequest(request_id="x", prompt_token_ids=[1], sampling=SamplingParams(max_tokens=1))
    prompt = PromptReading(tokenizer=byte_tokenizer, token_ids=[1])
    generation = Generation(
        state,
        byte_tokenizer,
        lambda: engine.generate(request),
        TextRules(),
        0.0,
        prompt,
        is_first=True,
        num_samples=1,
        max_tokens=1,
    )
    async with contextlib.aclosing(generation.stream()) as deltas:
        assert (await anext(deltas)).finish_reason is FinishReason.LENGTH
        assert await api.outcomes() == {"length": 1}
        assert await api.metric("octavo_requests_in_flight") == 0
    assert await api.outcomes() == {"length": 1}


async def test_latencies_are_observed_once_per_token_and_request(api, engine) -> None:
    engine.answer("abcde")
    await api.completion()
    engine.answer("fg", FinishReason.STOP)
    await api.completion(stream=True)
    assert await api.metric("octavo_time_to_first_token_seconds_count") == 2
    assert await api.metric("octavo_inter_token_latency_seconds_count") == 4 + 2  # the second's EOS is a token too
    assert await api.metric("octavo_e2e_request_latency_seconds_count") == 2
    assert await api.outcomes() == {"length": 1, "stop": 1}


async def test_merged_deltas_count_one_interval_per_token(api, engine) -> None:
    engine.answer("abcdefg", per_delta=3)
    await api.completion()
    assert (
        await api.metric("octavo_inter_token_latency_seconds_count") == 4
    )  # of the first delta's three, only one is timed


async def test_refused_requests_have_no_outcome(api) -> None:
    await api.completion(model="other")
    await api.completion(prompt="x" * 600)
    await api.completion(max_tokens=-1)
    assert await api.outcomes() == {}


async def test_counters_go_on_when_a_new_engine_process_starts_at_0(api, engine) -> None:
    engine.stats = engine.make_stats(generation_tokens=100, steps=60)
    assert await api.metric("octavo_generation_tokens_total") == 100
    ready = engine.make_ready()
    engine.ready, engine.stats = ready, ready.stats
    assert await api.metric("octavo_generation_tokens_total") == 100
    engine.stats = engine.make_stats(generation_tokens=200, steps=70)  # more than the one before it had
    assert await api.metric("octavo_generation_tokens_total") == 300
    assert await api.metric("octavo_steps_total") == 130


async def test_labelled_counters_go_on_too(api, engine) -> None:
    group, missed = 'octavo_kv_evicted_pages_total{group="full"}', "octavo_prefix_cache_missed_tokens_total"
    engine.stats = engine.make_stats(
        groups=[engine.make_group("full", evicted=9)], missed_prompt_tokens={"evicted": 30, "salt": 2}, page_seconds=1.5
    )
    assert await api.metric(group) == 9
    engine.ready = engine.make_ready()
    engine.stats = engine.make_stats(
        groups=[engine.make_group("full", evicted=1)], missed_prompt_tokens={"evicted": 4}, page_seconds=0.25
    )
    assert await api.metric(group) == 10
    assert await api.metric(f'{missed}{{reason="evicted"}}') == 34
    assert await api.metric(f'{missed}{{reason="salt"}}') == 2
    assert await api.metric("octavo_page_seconds_total") == 1.75


async def test_what_an_engine_did_before_it_died_is_counted_without_a_scrape_between(api, engine) -> None:
    engine.answer("abc").insert(-1, lambda: setattr(engine, "stats", engine.make_stats(generation_tokens=50)))
    await api.completion()
    ready = engine.make_ready()
    engine.ready, engine.stats = ready, engine.make_stats(generation_tokens=7)
    assert await api.metric("octavo_generation_tokens_total") == 57


def test_counters_keep_what_they_saw_while_the_engine_is_down(engine) -> None:
    counters = EngineCounters()
    counters.update(engine.ready, engine.make_stats(rotations=3, preemptions=preemptions(3)))
    counters.update(None, None)
    assert counters.counts()[ROTATIONS] == {(): 3}
    assert counters.counts()[PREEMPTIONS][("swap", "decode")] == 3


async def test_i08_nothing_of_a_request_shows_in_the_metrics(api, engine) -> None:
    engine.answer("answersecret")
    await api.completion(prompt="promptsecret", user="usersecret", stop=["stopsecret"], max_tokens=12)
    await api.chat(model="modelsecret")
    assert "secret" not in (await api.http.get("/metrics")).text


async def test_i08_nothing_of_a_request_shows_in_the_log_even_when_it_fails(api, engine, caplog) -> None:
    caplog.set_level("DEBUG", logger="octavo")
    engine.answer("answersecret", None).append(RuntimeError("a bug"))
    await api.completion(prompt="promptsecret", user="usersecret", stream=True)
    assert "a bug" in caplog.text
    assert "secret" not in caplog.text


async def test_two_servers_count_apart(api, engine, byte_tokenizer) -> None:
    from server.state import ServerState

    other = ServerState(engine, "other", tokenizer=byte_tokenizer)
    await api.completion()
    assert await api.outcomes() == {"length": 1}
    assert b'octavo_requests_total{outcome="length"} 0.0' in await other.metrics.scrape()
