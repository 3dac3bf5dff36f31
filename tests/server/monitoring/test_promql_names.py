"""The tokenizer that the tests of names trust."""

from __future__ import annotations

import pytest

from tests.server.monitoring.promql_names import label_values_name, metric_names, selectors, tokens


@pytest.mark.parametrize(
    ("promql", "names"),
    [
        ("up", {"up"}),
        ('sum by (group, state) (kv_pages{group="up", state=~"a|b"})', {"kv_pages"}),
        ("sum(rate(a_total[5m])) by (le)", {"a_total"}),
        ("histogram_quantile(0.99, sum by (le) (rate(ttft_bucket[$__rate_interval])))", {"ttft_bucket"}),
        ("job:a:ratio < 0.5 * job:b:ratio and on (job) c offset 1d > 1e3", {"job:a:ratio", "job:b:ratio", "c"}),
        ('a / ignoring (reason) group_left (x) b{c="d) e"}', {"a", "b"}),
        ("time() - start_seconds < +Inf", {"start_seconds"}),
        ("max_over_time((a - b)[5m:15s])", {"a", "b"}),
        ("avg without (instance) (x) # not y", {"x"}),
    ],
)
def test_names_are_what_is_selected(promql: str, names: set[str]) -> None:
    assert metric_names(promql) == names


def test_a_selector_has_its_matchers() -> None:
    assert selectors('rate(a{x="}", y=~"1"}[5m]) / on (job) b') == {'a{x="}",y=~"1"}', "b"}


def test_what_is_no_promql_is_an_error() -> None:
    with pytest.raises(ValueError, match="no PromQL at '; b'"):
        tokens("a; b")


def test_a_variables_query_names_its_metric() -> None:
    assert label_values_name('label_values(engine_up{job=~"$job"}, instance)') == "engine_up"
