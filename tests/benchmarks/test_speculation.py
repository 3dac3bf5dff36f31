"""The arithmetic of what guessed tokens bring."""

from __future__ import annotations

import pytest

from benchmarks import speculation
from benchmarks.client import Client, Target
from benchmarks.speculation import Measured, MeasurementError, ask, decode_rate, table
from benchmarks.stream import RequestRecord


def test_the_rate_is_of_tokens_after_the_first_whether_they_come_one_by_one_or_together() -> None:
    alone = RequestRecord(sent=0.0, chunk_times=(1.0, 1.5, 2.0, 2.5, 3.0), output_tokens=5)
    together = RequestRecord(sent=7.0, chunk_times=(9.0, 10.0, 11.0), output_tokens=5)
    assert decode_rate([alone]) == 2.0
    assert decode_rate([together]) == 2.0
    assert decode_rate([alone, together]) == 2.0


def test_a_row_has_medians_of_the_rounds_and_shares_of_all_tokens() -> None:
    rounds = [
        Measured(plain=10.0, guessing=20.0, drafted=60, accepted=30, tokens=100),
        Measured(plain=20.0, guessing=30.0, drafted=40, accepted=20, tokens=100),
        Measured(plain=10.0, guessing=11.0, drafted=0, accepted=0, tokens=50),
    ]
    silent = [Measured(plain=10.0, guessing=10.0, drafted=0, accepted=0, tokens=100)]
    assert table({"code": rounds, "letters": silent}).splitlines()[2:] == [
        "| code | 10.0 | 20.0 | 1.50 (1.10 to 2.00) | 50% of 100 | 20% |",
        "| letters | 10.0 | 10.0 | 1.00 (1.00 to 1.00) | none guessed | 0% |",
    ]


async def test_a_request_that_fails_ends_the_measurement(fake_server) -> None:
    fake_server.fail_from = 0
    async with Client(Target(url=fake_server.url, model="fake-model")) as client:
        with pytest.raises(MeasurementError, match="no free pages"):
            await ask(client, "a b", 4, 2)


def test_a_server_that_does_not_start_is_told_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert speculation.main(["--octavo", "false", "--port", "8391"]) == 2
    assert "ended with status 1" in capsys.readouterr().err
