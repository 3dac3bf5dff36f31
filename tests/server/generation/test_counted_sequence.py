"""A sequence is counted once, by what ended it, and what the engine says goes on as an error of the API."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import EngineDied
from engine.messages import RequestDelta
from scheduler.request import FinishReason
from server.errors import ApiError
from server.generation.counted_sequence import CountedSequence
from server.metrics.metrics import RequestEnd


class Counts:
    """What is counted, in its order."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def count_submitted(self) -> None:
        self.told.append("submitted")

    def count_failure(self, code: str) -> None:
        self.told.append(code)

    def count_end(self, end: RequestEnd) -> None:
        self.told.append(end.outcome)


def describe(outcome: FinishReason) -> RequestEnd:
    return RequestEnd(outcome=outcome, seconds=1.0, prompt_tokens=2, generation_tokens=3, max_tokens=4)


def aborted() -> RequestDelta:
    return RequestDelta(request_id="a", token_ids=[], finish_reason=FinishReason.ABORT)


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.mark.parametrize("outcome", [FinishReason.STOP, FinishReason.LENGTH])
def test_one_that_ends_is_counted_by_its_end(counts, outcome) -> None:
    with CountedSequence(counts, describe) as sequence:
        sequence.check(RequestDelta(request_id="a", token_ids=[1], finish_reason=outcome))
        sequence.end(outcome)
    assert counts.told == ["submitted", outcome]


@pytest.mark.parametrize("leaves", [asyncio.CancelledError, GeneratorExit])
def test_one_whose_consumer_leaves_is_an_abort(counts, leaves) -> None:
    with pytest.raises(leaves), CountedSequence(counts, describe):
        raise leaves
    assert counts.told == ["submitted", FinishReason.ABORT]


def test_one_that_the_engine_aborts_may_be_asked_again(counts) -> None:
    with pytest.raises(ApiError) as error, CountedSequence(counts, describe) as sequence:
        sequence.check(aborted())
    assert (error.value.status, error.value.code) == (503, "aborted")
    assert counts.told == ["submitted", FinishReason.ABORT]


def test_one_that_is_not_queued_is_counted_as_a_refusal_alone(counts, engine) -> None:
    with pytest.raises(ApiError) as error, CountedSequence(counts, describe) as sequence:
        sequence.check(engine.failure("queue_full"))
    assert error.value.status == 429
    assert counts.told == ["submitted", "queue_full"]


def test_one_that_fails_is_an_error_with_its_code(counts, engine) -> None:
    with pytest.raises(ApiError) as error, CountedSequence(counts, describe) as sequence:
        sequence.check(engine.failure("step_failed"))
    assert (error.value.status, error.value.code) == (500, "step_failed")
    assert counts.told == ["submitted", "step_failed", FinishReason.ERROR]


def test_one_without_a_result_is_an_error_of_the_server(counts) -> None:
    with pytest.raises(ApiError) as error, CountedSequence(counts, describe) as sequence:
        sequence.end(None)
    assert (error.value.status, error.value.code) == (500, "internal_error")
    assert counts.told == ["submitted", FinishReason.ERROR]


def test_an_engine_that_dies_is_told_in_its_words(counts) -> None:
    with pytest.raises(ApiError, match="gone") as error, CountedSequence(counts, describe):
        raise EngineDied("gone")
    assert (error.value.status, error.value.code) == (500, "engine_died")
    assert counts.told == ["submitted", FinishReason.ERROR]


def test_what_nobody_thought_of_leaves_as_it_is(counts) -> None:
    with pytest.raises(ZeroDivisionError), CountedSequence(counts, describe):
        raise ZeroDivisionError
    assert counts.told == ["submitted", FinishReason.ERROR]
