"""Everybody who asked is told how a sequence ended."""

from __future__ import annotations

import logging

import pytest

from engine.messages import RequestDelta
from scheduler.request import FinishReason
from server.request_ends import RequestEnds

LAST = RequestDelta(request_id="a", token_ids=[1], finish_reason=FinishReason.ABORT)


def test_each_observer_is_told_once_in_the_order_of_subscription() -> None:
    ends = RequestEnds()
    told: list[tuple[str, RequestDelta]] = []
    ends.subscribe(lambda last: told.append(("first", last)))
    ends.subscribe(lambda last: told.append(("second", last)))
    ends.tell(LAST)
    assert told == [("first", LAST), ("second", LAST)]


def test_an_observer_that_fails_keeps_no_other_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    ends = RequestEnds()
    told: list[RequestDelta] = []

    def fail(last: RequestDelta) -> None:
        raise RuntimeError("a bug")

    ends.subscribe(fail)
    ends.subscribe(told.append)
    with caplog.at_level(logging.ERROR, logger="octavo"):
        ends.tell(LAST)
    assert told == [LAST]
    assert "a bug" in caplog.text
