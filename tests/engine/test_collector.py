"""What a slow reader gets at once: everything of each delta it has not read, in order."""

from __future__ import annotations

import pytest

from engine.collector import Collector
from engine.messages import RequestDelta
from engine.sampling_params import TokenLogprobs
from scheduler.request import FinishReason


def told(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, 1, [token_id], [-0.5])


async def test_deltas_merge_with_all_that_they_tell() -> None:
    collector = Collector()
    collector.put(RequestDelta(request_id="a", token_ids=[], prompt_logprobs=[None, told(1)]))
    collector.put(RequestDelta(request_id="a", token_ids=[7], prompt_logprobs=[told(2)], logprobs=[told(7)]))
    collector.put(
        RequestDelta(
            request_id="a",
            token_ids=[8, 9],
            logprobs=[told(8), told(9)],
            embedding=b"1234",
            finish_reason=FinishReason.LENGTH,
        )
    )
    merged = await collector.get()
    assert merged.token_ids == [7, 8, 9]
    assert merged.logprobs == [told(7), told(8), told(9)]
    assert merged.prompt_logprobs == [None, told(1), told(2)]
    assert merged.embedding == b"1234"
    assert merged.finish_reason is FinishReason.LENGTH


async def test_d21_nothing_that_lies_unread_is_copied_again_for_each_token() -> None:
    collector = Collector()
    first = RequestDelta(request_id="a", token_ids=[0], logprobs=[told(0)], prompt_logprobs=[None])
    lists = (first.token_ids, first.logprobs, first.prompt_logprobs)
    collector.put(first)
    for token_id in range(1, 5):
        collector.put(RequestDelta(request_id="a", token_ids=[token_id], logprobs=[told(token_id)]))
    merged = await collector.get()
    assert merged.token_ids == [0, 1, 2, 3, 4]
    found = (merged.token_ids, merged.logprobs, merged.prompt_logprobs)
    assert all(one is other for one, other in zip(found, lists, strict=True))


async def test_what_was_read_is_not_told_again_and_an_error_comes_last() -> None:
    collector = Collector()
    collector.put(RequestDelta(request_id="a", token_ids=[7], logprobs=[told(7)]))
    assert (await collector.get()).token_ids == [7]
    collector.put(RequestDelta(request_id="a", token_ids=[8], logprobs=[told(8)]))
    collector.fail(RuntimeError("gone"))
    assert (await collector.get()).logprobs == [told(8)]
    with pytest.raises(RuntimeError, match="gone"):
        await collector.get()
