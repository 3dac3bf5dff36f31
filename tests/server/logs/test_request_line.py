"""The line of a finished request. Ids like I08 name cases known from other servers."""

from __future__ import annotations

import json
import re

import pytest

from engine.messages import PreemptionNote, RequestDelta
from scheduler.request import FinishReason
from server.logs.request_line import json_line, text_line
from server.observation.request_record import RequestRecord


class Counts:
    """An answer of 64 tokens to a prompt of 31."""

    prompt_tokens, completion_tokens, cached_tokens = 31, 64, 16
    first_token_at = 100.05

    @property
    def usage(self) -> Counts:
        return self


@pytest.fixture
def record(engine) -> RequestRecord:
    note = PreemptionNote(
        requester="other", seconds=0.5, kind="recompute", cause="pages", pages_freed=3, tokens_to_recompute=40
    )
    record = RequestRecord(
        method="POST", path="/v1/chat/completions", route="/v1/chat/completions", status=200, arrived=100.0,
        ended=101.25, own_id="chatcmpl-1", shown_id="mine", tenant="key-1", streams=True, progress=Counts(),
    )  # fmt: skip
    for number, name in enumerate(("chatcmpl-1-0-0", "chatcmpl-1-0-1")):
        record.begin_sequence(name, number)
        record.sequences[name].finish_reason = FinishReason.STOP
        ledger = engine.make_ledger(
            peak_pages=3 + number, recomputed_tokens=40, preemptions=[note], draft_tokens=8, accepted_draft_tokens=5
        )
        record.sequences[name].end(RequestDelta(request_id=name, token_ids=[], ledger=ledger))
    return record


def test_a_json_line_has_every_field_and_the_ledgers_summed(record) -> None:
    line = json_line(record)
    assert line.endswith(b"}\n")
    fields = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields.pop("time"))
    assert fields == {
        "level": "info",
        "logger": "octavo.requests",
        "message": "POST /v1/chat/completions 200 stop",
        "request_id": "mine",
        "id": "chatcmpl-1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "outcome": "stop",
        "error": None,
        "tenant": "key-1",
        "stream": True,
        "sequences": 2,
        "finish_reasons": ["stop", "stop"],
        "tokens": {"prompt": 31, "cached": 16, "generated": 64},
        "seconds": {"queue": 0.125, "prefill": 0.25, "decode": 0.625, "ttft": 0.05, "total": 1.25},
        "ledger": {
            "known": 2,
            "peak_pages": 7,
            "page_seconds": 1.0,
            "recomputed_tokens": 80,
            "preemptions": 2,
            "draft_tokens": 16,
            "accepted_draft_tokens": 10,
        },
    }


def test_a_text_line_has_the_same_without_what_is_nothing(record) -> None:
    record.error_code = None
    assert text_line(record).decode() == (
        "octavo: request request_id=mine id=chatcmpl-1 method=POST route=/v1/chat/completions status=200 outcome=stop "
        "tenant=key-1 stream=true sequences=2 finish_reasons=stop,stop tokens.prompt=31 tokens.cached=16 "
        "tokens.generated=64 seconds.queue=0.125 seconds.prefill=0.25 seconds.decode=0.625 seconds.ttft=0.05 "
        "seconds.total=1.25 ledger.known=2 ledger.peak_pages=7 ledger.page_seconds=1.0 ledger.recomputed_tokens=80 "
        "ledger.preemptions=2 ledger.draft_tokens=16 ledger.accepted_draft_tokens=10\n"
    )


@pytest.mark.parametrize(
    "chosen", ["a\noctavo: request id=forged", "a\r\x1b[2K", "a outcome=error", 'a" outcome="error', "a\u2028b", "\x85"]
)
def test_an_id_that_a_client_chose_can_forge_neither_a_line_nor_a_field(record, chosen) -> None:
    record.shown_id = chosen
    text, line = text_line(record).decode(), json_line(record)
    assert len(text.splitlines()) == len(line.splitlines()) == 1
    assert text.isascii()
    assert text[:-1].isprintable()
    assert json.loads(line)["request_id"] == chosen
    quoted = re.match(r'octavo: request request_id=("(?:[^"\\]|\\.)*") id=chatcmpl-1 ', text)
    assert quoted is not None
    assert json.loads(quoted[1]) == chosen


def test_errors_have_their_level_and_a_line_without_an_answer_has_no_numbers_of_one() -> None:
    record = RequestRecord(method="POST", path="/v1/completions", status=500, error_code="step_failed")
    fields = json.loads(json_line(record))
    assert (fields["level"], fields["outcome"], fields["error"]) == ("error", "error", "step_failed")
    assert fields["message"] == "POST no such route 500 error"
    assert fields.keys() & {"tokens", "ledger", "stream"} == set()
    assert list(fields["seconds"]) == ["total"]
