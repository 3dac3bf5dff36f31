"""Policies: the order of requests, which admission follows first to last and preemption last to first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from scheduler.policy import FairShare, FirstComeFirstServed, Policy, PriorityWithAging, lowest
from scheduler.request import Request

if TYPE_CHECKING:
    from tests.scheduler.conftest import Simulation

Make = Callable[..., Request]


def placed(policy: Policy, request: Request) -> Request:
    """With its lane and key, as the scheduler sets them."""
    request.lane, request.key = policy.lane(request), policy.key(request)
    policy.enter(request)
    return request


def order(policy: Policy, *requests: Request) -> str:
    return "".join(one.request_id for one in sorted(requests, key=policy.rank))


# ---- first come, first served


def test_first_come_first_served_goes_by_arrival_alone(make_request: Make) -> None:
    policy = FirstComeFirstServed()
    requests = [
        placed(policy, make_request("b", order=1, priority=-9, tenant="x")),
        placed(policy, make_request("c", order=2, tenant="a")),
        placed(policy, make_request("a", order=0, priority=9)),
    ]
    assert order(policy, *requests) == "abc"
    policy.charge(requests[0], 1000, 1000)
    assert order(policy, *requests) == "abc"
    assert lowest(policy, requests).request_id == "c"


def test_who_holds_a_reservation_gives_way_after_all_others(make_request: Make) -> None:
    policy = FirstComeFirstServed()
    old, middle, new = (make_request(name, prompt=10, order=place) for place, name in enumerate("abc"))
    new.reserved_tokens = 10
    assert new.holds_reservation
    assert lowest(policy, [old, middle, new]) is middle
    middle.reserved_tokens = 40
    assert lowest(policy, [old, middle, new]) is old
    old.reserved_tokens = 40
    assert lowest(policy, [old, middle, new]) is new
    new.reserved_tokens = 9  # used up
    old.reserved_tokens = middle.reserved_tokens = 0
    assert lowest(policy, [old, middle, new]) is new


# ---- priority


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # (arrived, priority), 10 seconds a level
        ((0.0, 0), (5.0, 0), "ab"),
        ((0.0, 0), (5.0, -1), "ba"),
        ((0.0, 0), (9.999, -1), "ba"),
        ((0.0, 0), (10.0, -1), "ab"),  # exactly made up for: by arrival
        ((0.0, 0), (10.001, -1), "ab"),
        ((0.0, 3), (29.0, 0), "ba"),
        ((0.0, 3), (31.0, 0), "ab"),
        ((100.0, -3), (100.0, 3), "ab"),
        ((100.0, 3), (100.0, -3), "ba"),
    ],
)
def test_a_level_of_priority_is_worth_so_many_seconds_of_waiting(
    make_request: Make, first: tuple[float, int], second: tuple[float, int], expected: str
) -> None:
    policy = PriorityWithAging(aging=10.0)
    a, b = (
        placed(policy, make_request(name, order=place, arrived=arrived, priority=priority))
        for place, (name, (arrived, priority)) in enumerate(zip("ab", (first, second), strict=True))
    )
    assert a.key == first[0] + 10.0 * first[1]
    assert order(policy, a, b) == expected
    assert lowest(policy, [a, b]).request_id == expected[-1]


# ---- fair shares


def test_the_tenant_that_has_had_least_for_its_weight_goes_first(make_request: Make) -> None:
    policy = FairShare({"a": 2.0})
    a, b = (placed(policy, make_request(name, order=place, tenant=name)) for place, name in enumerate("ab"))
    assert order(policy, a, b) == "ab"
    policy.charge(a, 10, 1)  # (10 + 2) / 2
    policy.charge(b, 3, 1)  # 3 + 2
    assert (policy.debt("a"), policy.debt("b")) == (6.0, 5.0)
    assert order(policy, a, b) == "ba"
    policy.charge(b, 1, 1)
    assert order(policy, a, b) == "ab"
    assert lowest(policy, [a, b]) is b


def test_a_tenant_that_was_away_starts_no_lower_than_the_least_of_the_others(make_request: Make) -> None:
    policy = FairShare({})
    a, b = (placed(policy, make_request(name, tenant=name)) for name in "ab")
    policy.charge(a, 100, 0)
    policy.charge(b, 70, 0)
    placed(policy, make_request("c", tenant="c"))
    assert policy.debt("c") == 70.0
    policy.leave(a)
    policy.charge(b, 60, 0)
    placed(policy, make_request("a again", tenant="a"))
    assert (policy.debt("a"), policy.debt("b"), policy.debt("c")) == (100.0, 130.0, 70.0)


def test_a_tenant_that_was_served_while_nobody_else_was_there_owes_nothing_to_those_who_come_later(
    make_request: Make,
) -> None:
    """All night a is alone; in the morning b comes just before a comes back: neither has saved up anything."""
    policy = FairShare({})
    a = placed(policy, make_request("a", tenant="a"))
    policy.charge(a, 1_000_000, 0)
    policy.leave(a)
    placed(policy, make_request("b", tenant="b"))
    placed(policy, make_request("a again", tenant="a"))
    assert policy.debt("b") == policy.debt("a") == 1_000_000.0


def test_a_tenant_is_present_until_its_last_request_has_ended(make_request: Make) -> None:
    policy = FairShare({})
    first, second = (placed(policy, make_request(name, tenant="a")) for name in ("1", "2"))
    policy.charge(first, 50, 0)
    policy.leave(first)
    placed(policy, make_request("b", tenant="b"))
    assert policy.debt("b") == 50.0
    policy.leave(second)
    policy.charge(placed(policy, make_request("b2", tenant="b")), 10, 0)
    placed(policy, make_request("a3", tenant="a"))
    assert policy.debt("a") == 60.0


def served(sim: Simulation) -> dict[str, float]:
    """Tokens of prompts that started, and twice the tokens drawn, by tenant."""
    total: dict[str, float] = {}
    for name, request in sim.requests.items():
        work = 2.0 * len(sim.outputs[name]) + (request.num_prompt_tokens if request.started is not None else 0)
        total[request.tenant] = total.get(request.tenant, 0.0) + work
    return total


@pytest.mark.parametrize(("num_pages", "depth"), [(12, 0), (12, 1), (200, 0)])
def test_in_the_long_run_service_is_as_the_weights(simulate: type[Simulation], num_pages: int, depth: int) -> None:
    """Three tenants that always have five requests; a few long ones of c, many short ones of a and b."""
    sim = simulate(
        num_pages=num_pages,
        max_num_seqs=6,
        budget=64,
        depth=depth,
        caching=False,
        policy=FairShare({"a": 3.0, "b": 1.0, "c": 2.0}),
    )
    shapes = {"a": (10, 10), "b": (30, 5), "c": (60, 40)}
    alive: dict[str, set[str]] = {tenant: set() for tenant in shapes}
    for _ in range(1500):
        for tenant, (prompt, max_tokens) in shapes.items():
            alive[tenant] = {name for name in alive[tenant] if name not in sim.reasons}
            while len(alive[tenant]) < 5:
                name = f"r{len(sim.requests)}"
                sim.add(name, prompt, max_tokens, tenant=tenant)
                alive[tenant].add(name)
        sim.step()
    work = served(sim)
    for tenant, weight in {"a": 3.0, "b": 1.0, "c": 2.0}.items():
        assert work[tenant] / sum(work.values()) == pytest.approx(weight / 6.0, rel=0.03)


def test_a_burst_of_one_tenant_does_not_take_every_place_of_a_step(simulate: type[Simulation]) -> None:
    """Each start is charged before the next is chosen."""
    sim = simulate(num_pages=64, budget=64, max_num_seqs=4, policy=FairShare({}))
    for number in range(6):
        sim.add(f"a{number}", 10, 5, tenant="a")
    for number in range(2):
        sim.add(f"b{number}", 10, 5, tenant="b")
    sim.step()
    assert sim.running == ["a0", "a1", "b0", "b1"]


def test_what_is_computed_again_after_a_preemption_is_not_charged(simulate: type[Simulation]) -> None:
    policy = FairShare({})
    sim = simulate(num_pages=9, budget=64, caching=False, policy=policy, watermark_tokens=1)
    sim.add("a", 40, 60, tenant="a")
    sim.add("b", 40, 60, tenant="b")
    sim.run()
    assert sim.scheduler.counters.recomputed_tokens > 0
    assert policy.debt("a") == policy.debt("b") == 40 + 2 * 60


def test_cached_tokens_are_not_charged(simulate: type[Simulation]) -> None:
    policy = FairShare({})
    sim = simulate(num_pages=32, budget=64, policy=policy)
    sim.add("a", [1] * 48, 1, tenant="a")
    sim.run()
    sim.add("b", [1] * 48, 1, tenant="b")
    sim.run()
    assert policy.debt("a") == 48 + 2
    assert policy.debt("b") == 50 + 16 + 2  # from where the other left


def test_two_samples_are_charged_for_one_prompt_and_two_answers(simulate: type[Simulation]) -> None:
    policy = FairShare({})
    sim = simulate(num_pages=32, budget=64, policy=policy)
    sim.add("a", 20, 5, tenant="a", num_samples=2)
    sim.run()
    assert policy.debt("a") == 20 + 2 * 2 * 5


def test_the_heir_of_an_aborted_sample_does_not_pay_for_what_its_parent_had_computed(
    simulate: type[Simulation],
) -> None:
    policy = FairShare({})
    sim = simulate(num_pages=32, budget=32, policy=policy, caching=False)
    sim.add("a", 100, 5, tenant="a", num_samples=2)
    sim.step()
    sim.abort("a")
    sim.run()
    assert policy.debt("a") == 100 + 2 * 5
    assert sim.scheduler.counters.recomputed_tokens == 32
