"""Merges as pairs of texts, made one by one."""

from __future__ import annotations

from array import array

import pytest

from server.text.ranked_merges import NamedPairs, splits_in_two

TOKENS = ["a", "b", "ab", "aba", "c"]


def test_pairs_of_ids_read_as_pairs_of_tokens() -> None:
    pairs = NamedPairs(array("i", [0, 1, 2, 0, 4, 4]), TOKENS)
    wanted = [("a", "b"), ("ab", "a"), ("c", "c")]
    assert list(pairs) == wanted
    assert len(pairs) == 3
    assert [pairs[0], pairs[1], pairs[-1]] == wanted
    assert pairs[1:] == wanted[1:]
    assert ("ab", "a") in pairs
    with pytest.raises(IndexError):
        pairs[3]


def test_every_split_into_two_tokens_is_a_pair_the_longer_left_part_first() -> None:
    ids = {token: number for number, token in enumerate(TOKENS)}
    assert list(NamedPairs(splits_in_two(["aba", "ab"], ids), TOKENS)) == [("ab", "a"), ("a", "b")]
