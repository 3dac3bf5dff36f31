"""PromQL made from metric specs: exact texts, and what the catalogue does not have is an error."""

from __future__ import annotations

import pytest

from server.metrics.metric_spec import Label, counter, gauge, histogram
from server.monitoring.promql import Level, Scope, add, minus, ratio

PAGES = gauge("pages", "Pages.", "group", "state")
HITS = counter("hits_tokens", "Hits.")
MISSES = counter("misses", "Misses.", Label("reason", ("a", "b")))
WAIT = histogram("wait_seconds", "Seconds.", (0.5, 2))

BOARD = Scope(Level.SELECTION, "$__rate_interval", 'job=~"$job"')
INSTANCE = Scope(Level.INSTANCE, "5m")
SERVICE = Scope(Level.SERVICE, "5m")


def test_a_board_leaves_only_the_labels_asked_for() -> None:
    assert BOARD.total(PAGES, "state") == 'sum by (state) (pages{job=~"$job"})'
    assert BOARD.total(PAGES) == 'sum(pages{job=~"$job"})'
    assert BOARD.total(PAGES, group="full") == 'sum(pages{job=~"$job", group="full"})'
    assert (
        BOARD.total_rate(MISSES, reason="a|b")
        == 'sum(rate(misses_total{job=~"$job", reason=~"a|b"}[$__rate_interval]))'
    )
    assert BOARD.highest(PAGES) == 'max(pages{job=~"$job"})'
    assert BOARD.lowest(PAGES) == 'min(pages{job=~"$job"})'


def test_an_instance_keeps_what_prometheus_says_of_it() -> None:
    assert INSTANCE.total(PAGES, "state") == "sum without (group) (pages)"
    assert INSTANCE.total(PAGES, "state", "group") == "pages"
    assert INSTANCE.total_rate(HITS) == "rate(hits_tokens_total[5m])"
    assert INSTANCE.over("1h").total_increase(MISSES) == "sum without (reason) (increase(misses_total[1h]))"


def test_a_service_adds_up_its_servers() -> None:
    assert SERVICE.total(PAGES, "state") == "sum by (cluster, namespace, job, state) (pages)"
    assert SERVICE.quantile(0.99, WAIT) == (
        "histogram_quantile(0.99, sum by (cluster, namespace, job, le) (rate(wait_seconds_bucket[5m])))"
    )


def test_histograms() -> None:
    assert BOARD.bucket_counts(WAIT) == 'sum by (le) (increase(wait_seconds_bucket{job=~"$job"}[$__rate_interval]))'
    assert INSTANCE.mean(WAIT) == "rate(wait_seconds_sum[5m]) / rate(wait_seconds_count[5m])"
    assert INSTANCE.count_rate(WAIT) == "rate(wait_seconds_count[5m])"
    assert INSTANCE.share_above(WAIT, 2) == (
        '1 - sum without (le) (rate(wait_seconds_bucket{le="2.0"}[5m])) / rate(wait_seconds_count[5m])'
    )


def test_terms_of_several_parts_are_put_in_parentheses() -> None:
    assert ratio("a", add("a", minus("b", "c"))) == "a / (a + (b - c))"
    assert ratio("sum(a / b)", "x") == "sum(a / b) / x"


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda: BOARD.total(PAGES, "reason"), "pages has no label reason; it has: group, state"),
        (lambda: BOARD.gauge(PAGES, stat="held"), "pages has no label stat; it has: group, state"),
        (lambda: BOARD.rate(HITS, reason="x"), "hits_tokens has no label reason; it has: none"),
        (lambda: BOARD.rate(MISSES, reason="c|d"), "misses has no reason c.d; it has: a, b"),
        (lambda: BOARD.rate(PAGES), "pages is a gauge, not a counter"),
        (lambda: BOARD.gauge(HITS), "hits_tokens is a counter, not a gauge"),
        (lambda: BOARD.quantile(0.5, PAGES), "pages is a gauge, not a histogram"),
        (lambda: BOARD.share_above(WAIT, 1), "wait_seconds has no bucket that ends at 1"),
    ],
)
def test_what_the_catalogue_does_not_have_is_an_error(write, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        write()
