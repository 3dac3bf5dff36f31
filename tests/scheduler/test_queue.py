"""The waiting queue: lanes in the policy's order, each by key and arrival, with removal from anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.policy import FairShare, FirstComeFirstServed
from scheduler.queue import WaitingQueue
from scheduler.request import Request, RequestStatus

Make = Callable[..., Request]


def names(queue: WaitingQueue) -> str:
    return "".join(waiting.request_id for waiting in queue)


def filled(make_request: Make, *places: tuple[str, float, int]) -> WaitingQueue:
    """A queue of (name, key, order), added in this sequence."""
    queue = WaitingQueue(FirstComeFirstServed())
    for name, key, order in places:
        queue.add(make_request(name, key=key, order=order))
    return queue


def test_requests_wait_by_key_then_by_arrival_whenever_they_were_added(make_request: Make) -> None:
    queue = filled(make_request, ("d", 2.0, 0), ("b", 1.0, 7), ("a", 1.0, 3), ("e", 2.5, 1), ("c", 1.0, 9))
    assert names(queue) == "abcde"
    assert len(queue) == 5


def test_a_preempted_request_comes_back_to_its_old_place(make_request: Make) -> None:
    queue = filled(make_request, ("b", 0.0, 1), ("c", 0.0, 2))
    back = make_request("a", order=0)
    back.status = RequestStatus.RUNNING
    queue.add(back)
    assert names(queue) == "abc"
    assert back.status is RequestStatus.WAITING


def test_a_request_can_leave_from_the_middle_once(make_request: Make) -> None:
    queue, middle = filled(make_request, ("a", 0.0, 0), ("c", 0.0, 2)), make_request("b", order=1)
    queue.add(middle)
    queue.remove(middle)
    assert names(queue) == "ac"
    assert len(queue) == 2
    with pytest.raises(KeyError, match="b"):
        queue.remove(middle)


def test_only_the_very_request_can_be_removed(make_request: Make) -> None:
    queue = filled(make_request, ("a", 0.0, 0))
    with pytest.raises(KeyError):
        queue.remove(make_request("a", order=0))
    with pytest.raises(KeyError):
        queue.remove(make_request("a", order=0, lane="elsewhere"))
    assert (names(queue), queue.num_tokens) == ("a", 1)


def test_the_request_just_seen_may_be_removed_while_iterating(make_request: Make) -> None:
    queue = filled(make_request, *((name, 0.0, order) for order, name in enumerate("abcdef")))
    seen = ""
    for request in queue:
        seen += request.request_id
        if request.request_id in "acdf":
            queue.remove(request)
    assert seen == "abcdef"
    assert names(queue) == "be"
    for request in queue:
        queue.remove(request)
    assert (names(queue), len(queue), queue.num_tokens) == ("", 0, 0)


def test_num_tokens_is_what_is_yet_to_be_computed(make_request: Make) -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    fresh, swapped = make_request("a", prompt=100, order=0), make_request("b", prompt=70, order=1)
    swapped.restart(64)
    queue.add(fresh)
    queue.add(swapped)
    assert queue.num_tokens == 100 + 6
    swapped.restart(0)  # counted as of when it came
    queue.remove(swapped)
    assert queue.num_tokens == 100
    queue.add(swapped)
    assert queue.num_tokens == 170


def test_lanes_go_by_debt_and_within_a_lane_the_order_stays(make_request: Make) -> None:
    policy = FairShare({})
    queue = WaitingQueue(policy)
    for order, name in enumerate(["a1", "b1", "a2", "c1"]):
        request = make_request(name, order=order, tenant=name[0], lane=name[0])
        policy.enter(request)
        queue.add(request)
    policy.charge(next(iter(queue)), 5, 0)
    assert names(queue) == "b1c1a1a2"
    b = next(iter(queue))
    policy.charge(b, 9, 0)
    assert names(queue) == "c1a1a2b1"
    queue.remove(b)
    assert names(queue) == "c1a1a2"


def test_lanes_with_equal_debts_go_by_who_came_first_not_by_name(make_request: Make) -> None:
    """Or else a stream of new tenants, none of which owes more than the least, could keep one waiting for ever."""
    policy = FairShare({})
    queue = WaitingQueue(policy)
    for order, name in enumerate(["z", "a", "m"]):
        request = make_request(name, order=order, tenant=name, lane=name)
        policy.enter(request)
        queue.add(request)
    assert names(queue) == "zam"
    assert [one.request_id for one in sorted(queue, key=policy.rank)] == ["z", "a", "m"]


def test_under_fair_shares_lanes_are_expected_to_take_turns_by_weight(make_request: Make) -> None:
    policy = FairShare({"b": 2.0})
    queue = WaitingQueue(policy)
    for order, name in enumerate(("a1", "a2", "a3", "b1", "b2", "b3", "b4")):
        one = make_request(name, order=order, lane=name[0])
        policy.enter(one)
        queue.add(one)
    # nobody has been served, and ties go by arrival: each of b's makes its lane go later by half as much
    assert [one.request_id for one in queue.expected()] == ["a1", "b1", "b2", "a2", "b3", "b4", "a3"]
    assert len(queue) == 7


def test_under_other_policies_the_expected_order_is_the_order(make_request: Make) -> None:
    queue = filled(make_request, ("d", 2.0, 0), ("b", 1.0, 7), ("a", 1.0, 3))
    assert list(queue.expected()) == list(queue)
