"""The fewest pages that meet a target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.simulation.page_search import PageSearch, Target, index_of, size
from scheduler.simulation.report import Report
from scheduler.simulation.trace import TraceRequest
from scheduler.simulation.workload import Workload


@pytest.fixture(scope="module")
def report(simulate_trace) -> Report:
    return simulate_trace([TraceRequest(0.0, 4, 3, 3)])


@pytest.mark.parametrize(("pages", "rounded"), [(7, 7), (10, 10), (99, 99), (100, 100), (101, 110), (12_345, 13_000)])
def test_sizes_have_two_significant_digits(pages: int, rounded: int) -> None:
    assert size(index_of(pages)) == rounded


def test_sizes_are_counted_without_a_gap() -> None:
    sizes = [size(index) for index in range(1, 400)]

    assert sizes[98:102] == [99, 100, 110, 120]
    assert [index_of(pages) for pages in sizes] == list(range(1, 400))


@pytest.mark.parametrize("needed", [1, 2, 9, 10, 57, 99, 100, 101, 640, 999, 1000])
@pytest.mark.parametrize("peak", [5, 60, 900])
def test_the_search_finds_the_first_size_that_is_enough(report: Report, needed: int, peak: int) -> None:
    def run(num_pages: int) -> Report:
        return replace(
            report,
            num_pages=num_pages,
            peak_held_pages=min(num_pages, peak),
            ttft_p99_of_all=1.0 if num_pages >= needed else 9.0,
        )

    search = PageSearch(run, Target(ttft=1.0, preemptions=0.0))

    assert search.smallest(1, 1000) == size(index_of(needed))
    sizes = [one.num_pages for one in search.tried]
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= 12


def test_both_targets_must_be_met(report: Report) -> None:
    target = Target(ttft=2.0, preemptions=0.5)
    slow = replace(report, ttft_p99_of_all=2.5)
    torn = replace(report, ttft_p99_of_all=2.0, preemptions={"recompute/decode": 1})

    assert not target.is_met(slow)
    assert not target.is_met(torn)
    assert target.is_met(replace(torn, submitted=2))


def test_there_is_no_answer_where_the_largest_size_is_too_small(report: Report) -> None:
    search = PageSearch(lambda pages: replace(report, num_pages=pages), Target(ttft=0.5, preemptions=0.0))

    assert search.smallest(1, 1000) is None
    assert [one.num_pages for one in search.tried] == [1000]


def test_more_pages_do_no_worse_in_the_simulation(simulate_trace) -> None:
    workload = Workload(num_requests=150, rate=0.5, mean_prompt=20, mean_output=12)
    reports = [simulate_trace(workload, num_pages=pages) for pages in (100, 130, 160, 240, 400)]
    p99s = [one.ttft_p99_of_all for one in reports]

    assert p99s == sorted(p99s, reverse=True)
    assert p99s[0] > 2 * p99s[-1]
