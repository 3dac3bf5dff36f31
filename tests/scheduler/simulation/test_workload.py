"""A drawn trace has the means it was asked for, and comes out the same each time."""

from __future__ import annotations

import itertools
import statistics

import pytest

from scheduler.simulation.workload import Workload


def test_the_same_seed_draws_the_same_requests_and_another_seed_draws_others() -> None:
    first = Workload(num_requests=50, rate=2.0, mean_prompt=30, mean_output=10, prefix_share=0.5, tenants={"a": 1})
    other = Workload(
        num_requests=50, rate=2.0, mean_prompt=30, mean_output=10, prefix_share=0.5, tenants={"a": 1}, seed=1
    )

    assert list(first) == list(first)
    assert list(first) != list(other)


def test_requests_are_drawn_one_at_a_time() -> None:
    endless = Workload(num_requests=10**12, rate=1.0, mean_prompt=8, mean_output=8)

    assert len(list(itertools.islice(endless, 3))) == 3


def test_rates_means_and_shares_are_as_asked_for() -> None:
    requests = list(
        Workload(
            num_requests=20_000,
            rate=5.0,
            mean_prompt=200,
            mean_output=60,
            max_tokens=100_000,
            prefix_share=0.3,
            num_prefixes=4,
            prefix_tokens=64,
            tenants={"a": 3, "b": 1},
        )
    )

    assert requests[-1].arrival == pytest.approx(20_000 / 5.0, rel=0.05)
    assert statistics.fmean(one.prompt_tokens for one in requests) == pytest.approx(200, rel=0.05)
    assert statistics.fmean(one.output_tokens for one in requests) == pytest.approx(60, rel=0.05)
    assert statistics.fmean(one.prefix_id is not None for one in requests) == pytest.approx(0.3, rel=0.05)
    assert statistics.fmean(one.tenant == "a" for one in requests) == pytest.approx(0.75, rel=0.05)
    assert {one.prefix_id for one in requests} == {None, *(f"prefix {i}" for i in range(4))}
    assert all(one.prefix_tokens == min(64, one.prompt_tokens) for one in requests if one.prefix_id)


def test_no_answer_is_longer_than_its_client_allowed() -> None:
    requests = list(Workload(num_requests=500, rate=1.0, mean_prompt=8, mean_output=10))

    assert {one.max_tokens for one in requests} == {40}
    assert max(one.output_tokens for one in requests) == 40
