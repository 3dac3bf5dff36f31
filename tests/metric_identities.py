"""What must hold between the numbers of any scrape of /metrics, and between one scrape and the next.

A reader of the text and nothing else: it takes no number from the code it checks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

SAMPLE = re.compile(r"^(\w+)(?:{(.*)})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
TYPE = re.compile(r"^# TYPE (\w+) (\w+)$", re.MULTILINE)

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


@dataclass(frozen=True)
class Scrape:
    """The text of one scrape, read line by line: prometheus-client's own parser would take most of a test's time."""

    text: str

    @cached_property
    def samples(self) -> dict[Series, float]:
        return {
            (name, tuple(sorted(LABEL.findall(labels)))): float(value)
            for name, labels, value in SAMPLE.findall(self.text)
        }

    @cached_property
    def never_falling(self) -> set[Series]:
        """The series of counters and histograms, but for the engine process, which is another after a restart."""
        names = {
            series
            for name, kind in TYPE.findall(self.text)
            for series in ((name,) if kind == "counter" else (f"{name}_bucket", f"{name}_sum", f"{name}_count"))
            if kind in ("counter", "histogram") and not name.startswith("octavo_engine_process_")
        }
        return {series for series in self.samples if series[0] in names}

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[Labels, float]]]:
        found: dict[str, list[tuple[Labels, float]]] = {}
        for (name, labels), value in self.samples.items():
            found.setdefault(name, []).append((labels, value))
        return found

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series of this name that have these labels."""
        wanted = set(labels.items())
        found = [value for pairs, value in self._by_name.get(name, ()) if wanted <= set(pairs)]
        assert found, f"there is no {name} with {labels}"
        return math.fsum(found)


def assert_identities(scrape: Scrape) -> None:
    """All that docs/metrics.md says holds in every scrape."""
    total = scrape.total
    pages, capacity = total("octavo_kv_pages"), total("octavo_kv_pages_capacity")
    held, cached = total("octavo_kv_used_pages"), total("octavo_kv_evictable_pages")
    assert pages == capacity == held + total("octavo_kv_available_pages")
    assert held == total("octavo_kv_pages", state="held")
    assert cached == total("octavo_kv_pages", state="cached")
    assert total("octavo_kv_available_pages") == total("octavo_kv_pages", state="free") + cached
    assert total("octavo_kv_usage_ratio") == held / capacity
    assert total("octavo_kv_bytes") == total("octavo_kv_capacity_bytes")
    assert total("octavo_kv_bytes", state="held") == total("octavo_kv_used_bytes")
    assert total("octavo_kv_wasted_slots") <= total("octavo_kv_held_slots")

    ended = total("octavo_requests_total")
    refused, in_flight = total("octavo_refusals_total", reason="queue_full"), total("octavo_requests_in_flight")
    assert total("octavo_requests_submitted_total") == ended + refused + in_flight
    assert total("octavo_requests_submitted_total") == total("octavo_request_samples_sum")
    for name in ("prompt_tokens", "generation_tokens", "max_tokens"):
        assert total(f"octavo_request_{name}_count") == ended
    completed = total("octavo_requests_total", outcome="stop") + total("octavo_requests_total", outcome="length")
    assert total("octavo_e2e_request_latency_seconds_count") == completed
    assert total("octavo_time_per_output_token_seconds_count") <= total("octavo_time_to_first_token_seconds_count")
    assert total("octavo_request_inference_seconds_count") == total("octavo_request_prefill_seconds_count")
    assert total("octavo_request_prefill_seconds_count") <= total("octavo_request_queue_seconds_count")
    assert total("octavo_request_queue_seconds_count") <= total("octavo_requests_submitted_total")

    prompt_tokens = total("octavo_prompt_tokens_total")
    hits, missed = total("octavo_prefix_cache_hits_tokens_total"), total("octavo_prefix_cache_missed_tokens_total")
    assert prompt_tokens == total("octavo_prompt_tokens_by_source_total") == hits + missed
    assert hits == total("octavo_prompt_tokens_by_source_total", source="cached")
    disabled = total("octavo_prefix_cache_missed_tokens_total", reason="disabled")
    assert total("octavo_prefix_cache_queries_tokens_total") == prompt_tokens - disabled

    steps, seconds = total("octavo_steps_total"), total("octavo_step_seconds_total")
    for name in ("step_duration_seconds", "step_tokens", "step_sequences"):
        assert total(f"octavo_{name}_count") == steps
    assert math.isclose(total("octavo_step_part_seconds_total"), seconds, abs_tol=1e-6)
    assert math.isclose(total("octavo_step_duration_seconds_sum"), seconds, abs_tol=1e-6)
    page_seconds = total("octavo_page_seconds_total")
    assert math.isclose(total("octavo_tenant_page_seconds_total"), page_seconds, rel_tol=1e-9, abs_tol=1e-9)


def assert_nothing_went_back(earlier: Scrape, later: Scrape) -> None:
    """No counter, and no series vanished."""
    fallen = {
        series: (earlier.samples[series], later.samples.get(series))
        for series in earlier.never_falling
        if later.samples.get(series, -math.inf) < earlier.samples[series]
    }
    assert fallen == {}, fallen
