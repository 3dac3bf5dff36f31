from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.stop_strings import StopMatcher


def feed_all(matcher: StopMatcher, deltas: list[str]) -> list[str]:
    return [matcher.feed(delta) for delta in deltas]


def test_d04_nothing_of_the_stop_string_is_emitted() -> None:
    matcher = StopMatcher(["DEFGHIJ"])
    assert "".join(feed_all(matcher, list(string.ascii_uppercase))) + matcher.flush() == "ABC"
    assert matcher.matched == "DEFGHIJ"


@pytest.mark.parametrize("deltas", [["N", " O", " P", " Q", " R"], ["N O", " P Q R"], ["N O P Q R"]])
def test_d05_stop_string_of_several_tokens_matches(deltas: list[str]) -> None:
    matcher = StopMatcher(["O P Q"])
    assert "".join(feed_all(matcher, deltas)) == "N "
    assert matcher.matched == "O P Q"


def test_d08_only_a_tail_that_begins_a_stop_string_is_held() -> None:
    matcher = StopMatcher(["b,c"])
    emitted = feed_all(matcher, ["<thi", "nk>", "ab", "b", ",", "x</think>"])
    assert emitted == ["<thi", "nk>", "a", "b", "", "b,x</think>"]
    assert matcher.matched is None
    assert matcher.flush() == ""


def test_d09_held_tail_is_flushed_once_at_the_end() -> None:
    matcher = StopMatcher(["STOP"])
    assert feed_all(matcher, ["text ST", "O"]) == ["text ", ""]
    assert matcher.flush() == "STO"
    assert matcher.flush() == ""


def test_d10_end_marker_in_two_pieces_stays_hidden() -> None:
    matcher = StopMatcher(["<|im_end|>"])
    assert feed_all(matcher, ["bye<|im", "_end|>"]) == ["bye", ""]
    assert matcher.matched == "<|im_end|>"


def test_d11_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(["ok", ""])


def test_d11_prompt_is_never_searched() -> None:
    matcher = StopMatcher(["the end"])
    assert matcher.feed(" end") + matcher.flush() == " end"  # the prompt ended in "the"


def test_no_stop_strings_pass_everything_through() -> None:
    matcher = StopMatcher([])
    assert feed_all(matcher, ["a", "", "b"]) == ["a", "", "b"]
    assert matcher.flush() == ""


def test_stop_string_complete_first_wins_over_the_one_begun_first() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.feed("xabcd") == "xa"
    assert matcher.matched == "bc"


def test_longest_of_those_complete_together_wins() -> None:
    matcher = StopMatcher(["User:", "\nUser:"])
    assert matcher.feed("hi\nUser:") == "hi"
    assert matcher.matched == "\nUser:"


def test_nothing_is_emitted_after_a_match() -> None:
    matcher = StopMatcher(["."])
    assert feed_all(matcher, ["a.b", "c"]) == ["a", ""]
    assert matcher.flush() == ""


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By searching the whole text."""
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    if not found:
        return text, None
    _, start, stop = min(found)
    return text[:start], stop


def longest_beginning_at_the_end(text: str, stops: list[str]) -> int:
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


SMALL_ALPHABET = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=8), max_size=4)


@given(st.lists(SMALL_ALPHABET, max_size=12), STOPS)
def test_result_is_that_of_searching_the_whole_text_however_it_is_cut(deltas: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted = "".join(feed_all(matcher, deltas)) + matcher.flush()
    assert (emitted, matcher.matched) == expected("".join(deltas), stops)


@given(st.lists(st.text("ab", max_size=3), max_size=12), STOPS)
def test_exactly_the_longest_beginning_of_a_stop_string_is_held(deltas: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = emitted = ""
    for delta in deltas:
        text += delta
        emitted += matcher.feed(delta)
        if matcher.matched is not None:
            break
        assert emitted == text[: len(text) - longest_beginning_at_the_end(text, stops)]


def test_d11_long_stop_string_of_near_matches_takes_linear_work() -> None:
    # 200,000 characters that each extend and break a match of 10,000: quadratic work would be 2e9 comparisons.
    stop = "a" * 9_999 + "b"
    matcher = StopMatcher([stop])
    emitted = sum(len(matcher.feed("a" * 100)) for _ in range(2_000))
    assert emitted == 200_000 - 9_999
    assert matcher.feed("b") == ""
    assert matcher.matched == stop
