"""The waiting queue: first come first served, preempted first, removal from anywhere."""

from __future__ import annotations

import pytest

from block_manager.hashing import BlockHashes
from scheduler.queue import WaitingQueue
from scheduler.request import Request


def request(name: str) -> Request:
    return Request(
        request_id=name,
        token_ids=[1],
        max_tokens=1,
        eos_token_ids=frozenset(),
        stop_token_ids=frozenset(),
        block_hashes=BlockHashes(16),
    )


def names(queue: WaitingQueue) -> str:
    return "".join(waiting.request_id for waiting in queue)


def test_requests_wait_in_order_of_arrival() -> None:
    queue = WaitingQueue()
    for name in "abc":
        queue.append(request(name))
    assert names(queue) == "abc"
    assert len(queue) == 3
    head = queue.head()
    assert head is not None
    assert head.request_id == "a"


def test_a_preempted_request_goes_to_the_front() -> None:
    queue = WaitingQueue()
    for name in "ab":
        queue.append(request(name))
    queue.push_front(request("y"))
    queue.push_front(request("x"))
    assert names(queue) == "xyab"


def test_a_request_can_leave_from_the_middle_once() -> None:
    queue, middle = WaitingQueue(), request("b")
    for one in (request("a"), middle, request("c")):
        queue.append(one)
    queue.remove(middle)
    assert names(queue) == "ac"
    with pytest.raises(KeyError):
        queue.remove(middle)


def test_an_empty_queue_has_no_head() -> None:
    assert WaitingQueue().head() is None
