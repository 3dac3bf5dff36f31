"""Prompts share as many tokens as their requests say, and not one more."""

from __future__ import annotations

import itertools

from scheduler.simulation.prompts import STOP_ID, token_ids
from scheduler.simulation.trace import TraceRequest


def num_shared(left: list[int], right: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def test_prompts_share_the_shorter_of_their_prefixes_of_one_id() -> None:
    long = token_ids(TraceRequest(0.0, 20, 1, 1, "p", 9), 1)
    short = token_ids(TraceRequest(0.0, 12, 1, 1, "p", 5), 2)

    assert (len(long), len(short)) == (20, 12)
    assert num_shared(long, short) == 5


def test_prompts_of_other_prefixes_or_of_none_share_nothing() -> None:
    prompts = [
        token_ids(TraceRequest(0.0, 8, 1, 1, "p", 8), 1),
        token_ids(TraceRequest(0.0, 8, 1, 1, "q", 8), 2),
        token_ids(TraceRequest(0.0, 8, 1, 1), 3),
        token_ids(TraceRequest(0.0, 8, 1, 1), 4),
    ]

    assert [num_shared(*pair) for pair in itertools.combinations(prompts, 2)] == [0] * 6
    assert all(STOP_ID not in prompt for prompt in prompts)


def test_no_token_of_a_prefix_is_any_requests_own() -> None:
    assert all(2**31 <= token < 2**32 for token in token_ids(TraceRequest(0.0, 8, 1, 1, "p", 8), 1))
