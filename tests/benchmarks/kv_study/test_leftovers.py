"""What finished requests leave behind, and the upkeep of a table, on the tiny model."""

from __future__ import annotations

from benchmarks.kv_study.study import Study


def test_every_page_is_back_and_accounted_for_after_every_request(study: Study) -> None:
    left = study.leftovers
    assert left.problems == ()
    assert [one.finished for one in left.moments] == list(range(1, 25))
    assert all(one.free + one.cached + one.held == left.total for one in left.moments)
    assert (left.ended.held, left.ended.free + left.ended.cached) == (0, left.total)
    assert left.ended.cached > 0
    assert (left.dropped.free, left.dropped.cached) == (left.total, 0)


def test_some_requests_were_aborted(study: Study) -> None:
    assert 1 <= study.leftovers.aborted <= 24 // 7


def test_upkeep_is_measured_at_every_length(study: Study) -> None:
    assert [one.length for one in study.upkeep] == [64, 128, 256]
    assert all(min(one.append, one.hashing, one.lookup, one.store) > 0 for one in study.upkeep)
