"""Guesses from a text's own past."""

from __future__ import annotations

import random

import pytest

from scheduler import ngram_index
from scheduler.ngram_index import MAX_INDEXED_TOKENS, NgramIndex


def propose(token_ids: list[int], limit: int = 4) -> list[int]:
    return NgramIndex().propose(token_ids, limit)


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 1, 2]) == [3, 4, 5, 6]
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 1, 2], limit=2) == [3, 4]


def test_one_token_alone_is_no_reason_to_guess() -> None:
    assert propose([1, 2, 3, 4, 1]) == []


def test_nothing_is_proposed_for_texts_too_short_to_repeat_themselves() -> None:
    assert propose([]) == propose([1]) == propose([1, 1]) == []


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    first, later = [7, 1, 2, 3, 50, 51], [8, 2, 3, 60, 61]
    assert propose([*first, *later, 1, 2, 3], limit=2) == [50, 51]
    assert propose([*first, *later, 9, 2, 3], limit=2) == [60, 61]


def test_of_equal_matches_the_latest_wins() -> None:
    assert propose([1, 2, 30, 9, 1, 2, 40, 9, 8, 1, 2], limit=1) == [40]


def test_a_text_that_goes_round_is_expected_to_go_on_so() -> None:
    assert propose([5, 5, 5], limit=4) == [5, 5, 5, 5]
    assert propose([9, 1, 2, 3, 1, 2, 3], limit=5) == [1, 2, 3, 1, 2]


def test_a_text_that_grows_is_proposed_the_same_as_one_seen_at_once() -> None:
    source = random.Random(1)
    token_ids: list[int] = []
    growing = NgramIndex()
    for _ in range(300):
        token_ids += [source.randrange(4) for _ in range(source.choice([1, 1, 2, 6]))]
        assert growing.propose(token_ids, 5) == propose(token_ids, 5)


def test_proposals_are_those_of_a_search_through_the_whole_text() -> None:
    def search(token_ids: list[int], limit: int) -> list[int]:
        for size in (4, 3, 2):
            for end in range(len(token_ids) - 1, size - 1, -1):
                if token_ids[end - size : end] == token_ids[-size:]:
                    text = list(token_ids)
                    while len(text) < len(token_ids) + limit:
                        text.append(text[end + len(text) - len(token_ids)])
                    return text[len(token_ids) :]
        return []

    source = random.Random(2)
    for _ in range(200):
        token_ids = [source.randrange(3) for _ in range(source.randrange(1, 40))]
        assert propose(token_ids, 3) == search(token_ids, 3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_index, "MAX_INDEXED_TOKENS", 10)


@pytest.mark.usefixtures("small")
def test_what_lies_too_far_back_is_forgotten_and_takes_no_memory() -> None:
    index = NgramIndex()
    token_ids = [1, 2, 3]
    for number in range(100, 200):
        token_ids.append(number)
        index.propose(token_ids, 1)
        assert len(index) <= 10 * 3
    assert index.propose([*token_ids, 1, 2], 1) == []
    assert index.propose([*token_ids, 1, 2, 192, 193], 1) == [194]


@pytest.mark.usefixtures("small")
def test_of_a_long_prompt_only_the_end_is_entered() -> None:
    index = NgramIndex()
    index.propose(list(range(1000)), 1)
    assert len(index) == 10 * 3


def test_entering_a_token_does_the_same_work_however_long_the_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(ngram_index, "hash", lambda key: calls.append(key) or hash(key), raising=False)
    work = []
    for length in (50, 5000):
        index, token_ids = NgramIndex(), list(range(length))
        index.propose(token_ids, 4)
        calls.clear()
        index.propose([*token_ids, 7], 4)
        work.append(len(calls))
    assert work[0] == work[1] <= 6


def test_the_bound_of_the_index_is_in_tokens() -> None:
    index = NgramIndex()
    index.propose(list(range(3 * MAX_INDEXED_TOKENS)), 1)
    assert len(index) == 3 * MAX_INDEXED_TOKENS
