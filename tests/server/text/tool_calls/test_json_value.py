"""Where JSON values end, against Python's own decoder."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.tool_calls.json_value import JsonValue, Reading

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def read(text: str) -> tuple[Reading, int]:
    """What the value came to, and after how many characters."""
    value = JsonValue()
    for number, character in enumerate(text, 1):
        if (reading := value.read(character)) is not Reading.MORE:
            return reading, number
    return Reading.MORE, len(text)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_a_value_ends_where_its_text_does(value, escaped, indent) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    expected = (Reading.ENDED_BEFORE, len(text) + 1) if is_number else (Reading.WHOLE, len(text))
    assert read(text + " ") == expected


@given(st.text(alphabet='{}[]":,\\ue1.-tn ru', max_size=12))
def test_what_is_read_to_the_end_is_json_and_nothing_else_is(text) -> None:
    try:
        value, end = json.JSONDecoder().raw_decode(text.lstrip(" "))
    except ValueError:
        assert read(text + "\0")[0] in (Reading.WRONG, Reading.MORE)
    else:
        reading, number = read(text + "\0")
        if isinstance(value, int | float) and not isinstance(value, bool) and reading is Reading.WRONG:
            return  # as in "1.", where Python's decoder takes the 1
        assert number - (reading is Reading.ENDED_BEFORE) == end + len(text) - len(text.lstrip(" "))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{'a", 2),
        ("{a", 2),
        ('{"a" 1', 6),
        ('{"a":}', 6),
        ('{"a":1,}', 8),
        ("[1,]", 4),
        ("[1 2", 4),
        ("[01]", 4),
        ("[1.]", 4),
        ("[nul]", 5),
        ("[NaN]", 2),
        ('"\n', 2),
        ('"\\x', 3),
        ('"\\u12g', 6),
        ("[}", 2),
        ("}", 1),
    ],
)
def test_a_value_goes_wrong_at_the_first_character_that_no_json_has_there(text, place) -> None:
    assert read(text) == (Reading.WRONG, place)


def test_deep_nesting_costs_no_stack() -> None:
    assert read("[" * 100_000 + "]" * 100_000) == (Reading.WHOLE, 200_000)
