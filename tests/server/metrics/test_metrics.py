"""What /metrics says. Ids like I07 name cases known from other servers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from itertools import product
from pathlib import Path

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
from server.metrics.engine_metrics import (
    MISS_REASONS,
    PREEMPTION_CAUSES,
    PREEMPTION_KINDS,
    WAIT_REASONS,
    EngineCounters,
)
from server.metrics.metrics import REFUSAL_REASONS

ROOT = Path(__file__).parents[3]


def preemptions(swaps_for_decodes: int) -> list[PreemptionCount]:
    return [
        PreemptionCount(kind="swap", cause="decode", count=swaps_for_decodes),
        PreemptionCount(kind="recompute", cause="prefill", count=1),
    ]


async def test_i07_every_series_is_there_before_the_first_request_and_0(api, engine) -> None:
    engine.ready = engine.stats = None
    engine.state = EngineState.STARTING
    text = (await api.http.get("/metrics")).text
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert set(samples.values()) == {0.0}
    names = {name for name, _ in samples}
    assert all(name.startswith("octavo_") for name in names)
    assert {
        "octavo_kv_pages",
        "octavo_kv_bytes",
        "octavo_kv_pages_capacity",
        "octavo_kv_capacity_bytes",
        "octavo_kv_used_bytes",
        "octavo_kv_usage_ratio",
        "octavo_engine_up",
        "octavo_requests_running",
        "octavo_requests_waiting",
        "octavo_requests_in_flight",
        "octavo_preemptions_total",
        "octavo_prompt_tokens_total",
        "octavo_prefix_cache_hits_tokens_total",
        "octavo_recomputed_tokens_total",
        "octavo_generation_tokens_total",
        "octavo_steps_total",
        "octavo_kv_oldest_cached_seconds",
        "octavo_queued_tokens",
        "octavo_longest_wait_seconds",
        "octavo_overtakes_total",
        "octavo_requests_submitted_total",
        "octavo_rotations_total",
        "octavo_spec_drafts_total",
        "octavo_spec_draft_tokens_total",
        "octavo_spec_accepted_tokens_total",
        "octavo_page_seconds_total",
        "octavo_prefix_cache_queries_tokens_total",
        "octavo_time_to_first_token_seconds_bucket",
        "octavo_inter_token_latency_seconds_bucket",
        "octavo_e2e_request_latency_seconds_bucket",
    } <= names
    assert {labels for name, labels in samples if name == "octavo_requests_total"} == {
        ("stop",),
        ("length",),
        ("abort",),
        ("error",),
    }


async def test_every_reason_kind_and_cause_is_there_from_the_start(api, engine) -> None:
    engine.ready = engine.stats = None
    for reason in WaitReason:
        assert await api.metric(f'octavo_requests_waiting{{reason="{reason}"}}') == 0
    for reason in RefusalReason:
        assert await api.metric(f'octavo_refusals_total{{reason="{reason}"}}') == 0
    for kind, cause in product(PreemptionKind, PreemptionCause):
        assert await api.metric(f'octavo_preemptions_total{{cause="{cause}",kind="{kind}"}}') == 0
    assert (list(WAIT_REASONS), list(REFUSAL_REASONS)) == (list(WaitReason), list(RefusalReason))
    assert (list(PREEMPTION_KINDS), list(PREEMPTION_CAUSES)) == (list(PreemptionKind), list(PreemptionCause))


async def test_every_reason_of_a_miss_and_every_state_of_a_host_page_is_there_from_the_start(api, engine) -> None:
    engine.ready = engine.stats = None
    for reason in MissReason:
        assert await api.metric(f'octavo_prefix_cache_missed_tokens_total{{reason="{reason}"}}') == 0
    for state in ("free", "prefix", "swapped"):
        assert await api.metric(f'octavo_host_pages{{state="{state}"}}') == 0
    assert list(MISS_REASONS) == list(MissReason)


async def test_i01_the_documentation_names_every_metric_and_no_other(api) -> None:
    families = list(text_string_to_metric_families((await api.http.get("/metrics")).text))
    served = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    documented = set(re.findall(r"\boctavo_\w+", (ROOT / "docs/api.md").read_text()))
    assert served == documented


async def test_names_tell_type_and_unit_as_prometheus_asks(api) -> None:
    await api.completion()
    text = (await api.http.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    assert "_created" not in text
    for family in families:
        assert re.fullmatch("octavo(_[a-z0-9]+)+", family.name)
        assert family.documentation.endswith((".", "error"))
        words = family.name.split("_")
        assert not {"counter", "gauge", "histogram", "milliseconds", "ms", "kib", "gib", "percent"} & set(words)
        if family.type == "counter":
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)
        else:
            assert words[-1] not in ("total", "count", "sum", "bucket")
        if family.type == "histogram":
            assert words[-1] == "seconds"


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
        state, byte_tokenizer, lambda: engine.generate(request), TextRules(), 0.0, prompt, is_first=True
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
    assert counters.total("rotations") == 3
    assert counters.total("preemptions", "swap", "decode") == 3


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
