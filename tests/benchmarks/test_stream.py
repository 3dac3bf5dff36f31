from __future__ import annotations

import pytest

from benchmarks.stream import Arrival, RequestRecord, parse_stream

USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def token(text: str, finish: str = "null") -> bytes:
    return b'data: {"choices":[{"index":0,"text":"%s","finish_reason":%s}]}\n\n' % (text.encode(), finish.encode())


def chat(delta: str, finish: str = "null") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n' % (delta.encode(), finish.encode())


def test_each_event_gets_the_time_of_its_arrival_and_usage_gives_the_counts() -> None:
    arrivals = [
        Arrival(1.5, token("a")),
        Arrival(1.75, token("b")),
        Arrival(2.0, token("c", '"length"')),
        Arrival(2.0, USAGE + DONE),
    ]

    assert parse_stream(1.0, arrivals) == RequestRecord(
        sent=1.0, chunk_times=(1.5, 1.75, 2.0), output_tokens=3, prompt_tokens=7, cached_tokens=4
    )


def test_an_event_split_over_two_reads_counts_when_its_last_byte_arrives() -> None:
    event = token("a")

    record = parse_stream(0.0, [Arrival(1.0, event[:11]), Arrival(2.0, event[11:]), Arrival(3.0, DONE)])

    assert record.chunk_times == (2.0,)


def test_two_events_in_one_read_share_its_time() -> None:
    record = parse_stream(0.0, [Arrival(1.0, token("a") + token("b")), Arrival(2.0, DONE)])

    assert record.chunk_times == (1.0, 1.0)


def test_without_usage_a_chunk_is_a_token_and_the_prompt_length_is_unknown() -> None:
    record = parse_stream(0.0, [Arrival(1.0, token("a") + token("b") + DONE)])

    assert (record.output_tokens, record.prompt_tokens, record.cached_tokens) == (2, None, 0)


def test_a_token_without_text_counts_but_a_bare_finish_reason_does_not() -> None:
    record = parse_stream(0.0, [Arrival(1.0, token("") + token("é")), Arrival(2.0, token("", '"stop"') + DONE)])

    assert record.chunk_times == (1.0, 1.0)


def test_the_opening_role_of_a_chat_is_no_token() -> None:
    arrivals = [
        Arrival(1.0, chat('{"role":"assistant","content":""}')),
        Arrival(2.0, chat('{"content":"Hi"}')),
        Arrival(3.0, chat("{}", '"stop"') + DONE),
    ]

    assert parse_stream(0.0, arrivals).chunk_times == (2.0,)


def test_comments_and_carriage_returns_are_no_events() -> None:
    record = parse_stream(0.0, [Arrival(1.0, b": ping\r\n\r\n" + token("a").replace(b"\n", b"\r\n") + DONE)])

    assert record.error is None
    assert record.chunk_times == (1.0,)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'data: {"error":{"message":"out of pages"}}\n\n' + DONE, "{'message': 'out of pages'}"),
        (b"data: {oops\n\n", "not JSON: b'{oops'"),
        (b"data: 3\n\n", "not a JSON object: b'3'"),
        (DONE, "the stream held no tokens"),
        (b"", "the stream held no tokens"),
        (token("a"), "the stream broke off before data: [DONE]"),
    ],
)
def test_a_broken_answer_is_an_error_and_has_no_times(data: bytes, error: str) -> None:
    record = parse_stream(0.0, [Arrival(1.0, data)])

    assert record == RequestRecord(sent=0.0, error=error)


def test_a_long_error_is_cut() -> None:
    record = parse_stream(0.0, [Arrival(1.0, b'data: {"error":"%s"}\n' % (b"x" * 1000))])

    assert record.error == "x" * 200
