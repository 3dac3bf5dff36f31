"""When a request ends, and why."""

from __future__ import annotations

import pytest

from block_manager.hashing import BlockHashes
from scheduler.request import FinishReason, Request


def request(*output: int, max_tokens: int = 3, eos: tuple[int, ...] = (9,), stop: tuple[int, ...] = (7,)) -> Request:
    made = Request(
        request_id="r",
        token_ids=[1, 2],
        max_tokens=max_tokens,
        eos_token_ids=frozenset(eos),
        stop_token_ids=frozenset(stop),
        block_hashes=BlockHashes(16),
    )
    made.token_ids.extend(output)
    return made


def ending(made: Request) -> FinishReason | None:
    return made.finish_reason(made.token_ids[-1])


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ((4,), None),
        ((4, 4), None),
        ((4, 4, 4), FinishReason.LENGTH),
        ((9,), FinishReason.STOP),
        ((7,), FinishReason.STOP),
        ((4, 4, 9), FinishReason.STOP),
        ((4, 4, 7), FinishReason.STOP),
    ],
)
def test_c11_eos_and_stop_tokens_are_a_stop_even_as_the_last_allowed_token(
    output: tuple[int, ...], reason: FinishReason | None
) -> None:
    assert ending(request(*output)) is reason


def test_without_eos_ids_only_the_length_ends_a_request() -> None:
    assert ending(request(9, eos=())) is None
    assert ending(request(9, 9, 9, eos=())) is FinishReason.LENGTH


def test_prompt_and_output_are_counted_apart() -> None:
    counted = request(4, 4)
    assert (counted.num_prompt_tokens, counted.num_output_tokens, counted.num_tokens) == (2, 2, 4)
