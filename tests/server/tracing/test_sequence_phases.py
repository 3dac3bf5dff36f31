"""Where the phases of a sequence lie on the clock of the API process."""

from __future__ import annotations

import pytest

from server.observation.request_record import SequenceRecord
from server.tracing.sequence_phases import Phase, SequencePhases


def phases_of(engine, begun: float, ended: float, answer_ended: float, **seconds: float | None) -> SequencePhases:
    ledger = engine.make_ledger(**{f"{name}_seconds": value for name, value in seconds.items()})
    return SequencePhases.of(SequenceRecord(0, begun, ended=ended, ledger=ledger), ledger, answer_ended)


def test_durations_end_where_the_last_word_came_and_the_rest_is_queue(engine) -> None:
    found = phases_of(engine, 10.0, 14.0, 14.5, queue=0.25, prefill=1.0, decode=2.0)
    assert found.phases == (Phase("queue", 10.0, 11.0), Phase("prefill", 11.0, 12.0), Phase("decode", 12.0, 14.0))
    assert found.arrived == 10.75


def test_what_comes_after_the_end_of_the_answer_is_cut(engine) -> None:
    found = phases_of(engine, 10.0, 14.0, 12.5, queue=1.0, prefill=1.0, decode=2.0)
    assert found.phases[-1] == Phase("decode", 12.0, 12.5)
    early = phases_of(engine, 10.0, 14.0, 11.5, queue=1.0, prefill=1.0, decode=2.0)
    assert early.phases[1:] == (Phase("prefill", 11.0, 11.5), Phase("decode", 11.5, 11.5))


def test_durations_that_are_longer_than_the_time_there_was_are_cut_at_the_start(engine) -> None:
    found = phases_of(engine, 10.0, 12.0, 13.0, queue=5.0, prefill=1.0, decode=0.5)
    assert found.phases == (Phase("queue", 10.0, 10.5), Phase("prefill", 10.5, 11.5), Phase("decode", 11.5, 12.0))


def test_a_sequence_that_never_started_has_a_queue_only(engine) -> None:
    found = phases_of(engine, 10.0, 12.0, 12.0, queue=1.5, prefill=None, decode=None)
    assert found.phases == (Phase("queue", 10.0, 12.0),)


@pytest.mark.parametrize(
    ("seconds", "name", "moment"),
    [(0.0, "queue", 11.0), (0.5, "queue", 11.5), (1.5, "prefill", 12.5), (3.0, "decode", 14.0), (99.0, "decode", 15.0)],
)
def test_a_moment_of_the_engine_is_in_the_phase_that_it_fell_in(engine, seconds, name, moment) -> None:
    found = phases_of(engine, 10.5, 15.0, 16.0, queue=1.0, prefill=1.0, decode=2.0)
    phase, at = found.at(seconds)
    assert (phase.name, at) == (name, moment)
