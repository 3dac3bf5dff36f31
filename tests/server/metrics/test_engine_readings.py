"""What /metrics says of the engine's newest words, and keeps of what earlier engine processes said."""

from __future__ import annotations

import math

from engine.histogram import Histogram
from engine.messages import STEP_TOKENS_BOUNDS
from server.auth import ApiKeys
from server.state import ServerState


def histogram(*values: float) -> Histogram:
    """Of the tokens of steps."""
    made = Histogram.empty(STEP_TOKENS_BOUNDS)
    for value in values:
        made.observe(value)
    return made


async def test_what_can_be_taken_is_free_or_cached(api, engine) -> None:
    engine.stats = engine.make_stats(pages_free=5, groups=[engine.make_group("full", cached=8, held=7)])
    assert await api.metric("octavo_kv_used_pages") == 7
    assert await api.metric("octavo_kv_evictable_pages") == 8
    assert await api.metric("octavo_kv_available_pages") == 13


async def test_wasted_bytes_are_the_share_of_slots_without_a_token(api, engine) -> None:
    group = engine.make_group("full", held=4, held_slots=64, wasted_slots=16)
    engine.stats = engine.make_stats(pages_free=16, groups=[group])
    assert await api.metric('octavo_kv_wasted_bytes{group="full"}') == 1024


async def test_bytes_of_host_pages_are_told_by_state(api, engine) -> None:
    engine.stats = engine.make_stats(host_pages_total=10, host_pages_free=4, host_pages_swapped=1)
    for state, pages in {"free": 4, "prefix": 5, "swapped": 1}.items():
        assert await api.metric(f'octavo_host_bytes{{state="{state}"}}') == pages * 1024


async def test_i03_a_full_pool_says_how_many_pages_are_wanted_and_when_none_will_be_left(api, engine) -> None:
    assert await api.metric("octavo_kv_exhaustion_seconds") == math.inf
    engine.stats = engine.make_stats(wanted_pages=6, exhaustion_seconds=2.5)
    assert await api.metric("octavo_kv_wanted_pages") == 6
    assert await api.metric("octavo_kv_exhaustion_seconds") == 2.5


async def test_the_parts_of_steps_are_told_by_part_and_go_on_after_a_restart(api, engine) -> None:
    parts = {"schedule": 0.25, "model": 2.0, "sample": 0.5, "output": 0.125}
    engine.stats = engine.make_stats(step_part_seconds=parts, step_seconds=2.875)
    for part, seconds in parts.items():
        assert await api.metric(f'octavo_step_part_seconds_total{{part="{part}"}}') == seconds
    engine.ready = engine.make_ready()
    assert await api.metric('octavo_step_part_seconds_total{part="model"}') == 4.0


async def test_histograms_of_steps_go_on_when_a_new_engine_process_starts_at_0(api, engine) -> None:
    engine.stats = engine.make_stats(step_tokens=histogram(1, 9, 20_000))
    assert await api.metric("octavo_step_tokens_count") == 3
    engine.ready = engine.make_ready()
    engine.stats = engine.make_stats(step_tokens=histogram(16))
    assert await api.metric('octavo_step_tokens_bucket{le="8.0"}') == 1
    assert await api.metric('octavo_step_tokens_bucket{le="16.0"}') == 3
    assert await api.metric("octavo_step_tokens_count") == 4
    assert await api.metric("octavo_step_tokens_sum") == 20_026


async def test_page_seconds_are_told_by_key_never_by_its_text(engine, byte_tokenizer) -> None:
    state = ServerState(engine, "tiny", tokenizer=byte_tokenizer, api_keys=ApiKeys(["secret-a", "secret-b"]))
    assert b'octavo_tenant_page_seconds_total{tenant="key-2"} 0.0' in await state.metrics.scrape()
    engine.stats = engine.make_stats(page_seconds=3.0, tenant_page_seconds={"key-1": 3.0})
    text = await state.metrics.scrape()
    assert b'octavo_tenant_page_seconds_total{tenant="key-1"} 3.0' in text
    assert b'octavo_tenant_page_seconds_total{tenant="key-2"} 0.0' in text
    assert b"secret" not in text


async def test_without_keys_all_page_seconds_are_nobodys(api, engine) -> None:
    assert await api.metric('octavo_tenant_page_seconds_total{tenant="none"}') == 0
    engine.stats = engine.make_stats(page_seconds=3.0, tenant_page_seconds={"": 3.0})
    assert await api.metric('octavo_tenant_page_seconds_total{tenant="none"}') == 3.0


async def test_restarts_of_the_engine_are_counted(api, engine) -> None:
    assert await api.metric("octavo_engine_restarts_total") == 0
    engine.num_restarts = 2
    assert await api.metric("octavo_engine_restarts_total") == 2
