"""Traces are read line by line, and a wrong line is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler.simulation.trace import TraceError, TraceRequest, read_trace

GOOD = '{"arrival": 1, "prompt_tokens": 5, "output_tokens": 2}'


def test_a_line_needs_three_fields_and_may_have_five_more() -> None:
    full = (
        '{"arrival": 1.5, "prompt_tokens": 5, "output_tokens": 2, "max_tokens": 9, "prefix_id": "p", '
        '"prefix_tokens": 4, "tenant": "t", "priority": -1}'
    )
    assert list(read_trace([GOOD, "\n", full])) == [
        TraceRequest(1.0, 5, 2, 2),
        TraceRequest(1.5, 5, 2, 9, "p", 4, "t", -1),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", '"{...}" is expected: one JSON object a line'),
        ("[1]", '"{...}" is expected: one JSON object a line'),
        ('{"prompt_tokens": 5, "output_tokens": 2}', '"arrival" is missing'),
        ('{"arrival": -1, "prompt_tokens": 5, "output_tokens": 2}', '"arrival" is -1, not a number of seconds'),
        ('{"arrival": NaN, "prompt_tokens": 5, "output_tokens": 2}', '"arrival" is NaN, not a number of seconds'),
        ('{"arrival": 0.5, "prompt_tokens": 5, "output_tokens": 2}', '"arrival" is 0.5, before that of an earlier'),
        ('{"arrival": 2, "prompt_tokens": 0, "output_tokens": 2}', '"prompt_tokens" is 0, not an integer of at least'),
        ('{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2.5}', '"output_tokens" is 2.5, not an integer'),
        ('{"arrival": 2, "prompt_tokens": true, "output_tokens": 2}', '"prompt_tokens" is true, not an integer'),
        ('{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2, "max_tokens": 1}', '"max_tokens" is 1, less than'),
        (
            '{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2, "prefix_id": "p", "prefix_tokens": 6}',
            '"prefix_tokens" is 6, more than the 5',
        ),
        (
            '{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2, "prefix_tokens": 3}',
            '"prefix_id" is missing: prefix_id and prefix_tokens come together',
        ),
        (
            '{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2, "prefix_id": "p"}',
            '"prefix_tokens" is missing: prefix_id and prefix_tokens come together',
        ),
        (f'{{"arrival": {10**400}, "prompt_tokens": 5, "output_tokens": 2}}', '"arrival" is 1000'),
        (
            '{"arrival": 2, "prompt_tokens": 100000001, "output_tokens": 2}',
            '"prompt_tokens" is 100000001, more than 100000000',
        ),
        ('{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2, "tenant": 3}', '"tenant" is 3, not a text'),
        ('{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2, "priority": "low"}', '"priority" is "low", not an'),
        ('{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2, "prompt": 1}', '"prompt" is not a field; those are'),
    ],
)
def test_a_wrong_line_is_named_by_number_and_field(line: str, problem: str) -> None:
    with pytest.raises(TraceError) as error:
        list(read_trace([GOOD, line]))

    assert str(error.value).startswith(f"line 2: {problem}")


def test_lines_are_read_only_when_they_are_needed() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield GOOD

    assert next(read_trace(endless())) == TraceRequest(1.0, 5, 2, 2)
