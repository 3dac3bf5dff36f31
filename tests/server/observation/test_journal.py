"""When requests are handed on to observers."""

from __future__ import annotations

import asyncio

import pytest

from engine.messages import RequestDelta
from scheduler.request import FinishReason
from server.observation.journal import RequestJournal
from server.observation.request_record import RequestRecord


class Observer:
    """Keeps what it is told; ``told`` is set by the first."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.told = asyncio.Event()

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.told.set()

    def close(self) -> None:
        pass


@pytest.fixture
def observer() -> Observer:
    return Observer()


def journal_of(*observers, patience: float = 60.0) -> RequestJournal:
    journal = RequestJournal(patience)
    for observer in observers:
        journal.add(observer)
    return journal


def record_of(journal: RequestJournal, *names: str) -> RequestRecord:
    record = RequestRecord(method="POST", path="/v1/completions", expect=journal.expect)
    for number, name in enumerate(names):
        record.begin_sequence(name, number)
    return record


def last(name: str) -> RequestDelta:
    return RequestDelta(request_id=name, token_ids=[], finish_reason=FinishReason.ABORT)


async def test_a_request_whose_sequences_have_ended_is_handed_on_with_the_end_of_its_answer(observer) -> None:
    journal = journal_of(observer)
    record = record_of(journal, "a", "b")
    journal.sequence_ended(last("a"))
    journal.sequence_ended(last("b"))
    assert observer.records == []
    journal.answer_ended(record)
    assert observer.records == [record]


async def test_a_request_waits_for_the_last_word_of_every_sequence(observer) -> None:
    journal = journal_of(observer)
    record = record_of(journal, "a", "b")
    journal.answer_ended(record)
    journal.sequence_ended(last("b"))
    assert observer.records == []
    journal.sequence_ended(last("a"))
    journal.sequence_ended(last("a"))
    journal.close()
    assert observer.records == [record]


async def test_a_last_word_that_never_comes_is_not_waited_for_longer_than_a_bound(observer) -> None:
    journal = journal_of(observer, patience=0.001)
    record = record_of(journal, "a")
    journal.answer_ended(record)
    await observer.told.wait()
    journal.sequence_ended(last("a"))
    assert observer.records == [record]
    assert record.ledgers == []


async def test_closing_hands_on_what_waits(observer) -> None:
    journal = journal_of(observer)
    journal.answer_ended(record_of(journal, "a"))
    journal.close()
    journal.close()
    assert len(observer.records) == 1


async def test_an_observer_that_fails_keeps_no_other_from_being_told(observer, caplog) -> None:
    class Failing(Observer):
        def finished(self, record: RequestRecord) -> None:
            raise ValueError("a defect")

    journal = journal_of(Failing(), observer)
    journal.answer_ended(record_of(journal))
    assert len(observer.records) == 1
    assert "a defect" in caplog.text


async def test_without_observers_nothing_is_kept() -> None:
    journal = journal_of()
    record = record_of(journal, "a")
    journal.answer_ended(record)
    assert (journal._expected, journal._waiting) == ({}, {})


async def test_nothing_is_kept_of_a_request_that_was_handed_on(observer) -> None:
    journal = journal_of(observer)
    for names in (["a", "b"], ["c"]):
        journal.answer_ended(record_of(journal, *names))
    journal.sequence_ended(last("a"))
    journal.close()
    assert (journal._expected, journal._waiting) == ({}, {})
