"""Policy: who goes first, and so also who gives way.

A policy puts every request into a *lane* and gives it a place there that never changes; lanes with less *debt* go
before others. One order serves admission (first to last) and preemption (last to first), so that the two cannot
contradict each other.

    fcfs       one lane, by arrival
    priority   one lane, by arrival shifted by priority: a level is worth so many seconds of waiting
    fair       a lane per tenant; its debt is the work done for the tenant, over the tenant's weight
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.request import Request

Rank = tuple[float, float, int]  # debt of the lane, key in the lane, order of arrival; smaller goes first


class Policy:
    """First come, first served; the base of the others."""

    name = "fcfs"
    charges = False  # whether `charge` does anything

    def lane(self, request: Request) -> str:
        """The lane of a request: constant."""
        return ""

    def key(self, request: Request) -> float:
        """The place of a request in its lane, before its order of arrival: constant."""
        return 0.0

    def debt(self, lane: str) -> float:
        """What a lane has had so far."""
        return 0.0

    def enter(self, request: Request) -> None:
        """A request has arrived."""

    def leave(self, request: Request) -> None:
        """A request has ended."""

    def charge(self, request: Request, num_prompt_tokens: int, num_drawn: int) -> None:
        """``request`` started, with so many tokens of its prompt to compute; or a step drew so many for it."""

    def price(self, request: Request) -> float:
        """What a lane's debt grows by, about, until ``request``, which waits, has ended."""
        return 0.0

    def rank(self, request: Request) -> Rank:
        """The place of a request among all."""
        return self.debt(request.lane), request.key, request.order


class FirstComeFirstServed(Policy):
    """By arrival."""


class PriorityWithAging(Policy):
    """Lower ``priority`` values first. ``aging`` seconds of waiting make up for one level, so that nothing starves.

    All requests age alike, so that the order of two never changes: arrival + aging * priority says it once for all.
    """

    name = "priority"

    def __init__(self, aging: float) -> None:
        self._aging = aging

    def key(self, request: Request) -> float:
        return request.arrived + self._aging * request.priority


class FairShare(Policy):
    """Service in proportion to the tenants' ``weights`` (1 where there is none), while they have something to do.

    The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a tenant is
    served when it has had least; one that comes back after a pause starts no lower than the least of the others or,
    where there is nobody else, than the last that left, so that nobody saves up. A prompt is charged as it starts, less
    what was cached, and a drawn token counts twice as much as one of a prompt. What is computed again after a
    preemption is the server's doing, and not charged.
    """

    name = "fair"
    charges = True
    DRAWN_TOKEN_COST = 2.0

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._debts: dict[str, float] = {}
        self._present: dict[str, int] = {}  # requests of each tenant that has any
        self._last_debt = 0.0  # of the tenant that left last

    def lane(self, request: Request) -> str:
        return request.tenant

    def debt(self, lane: str) -> float:
        return self._debts.get(lane, 0.0)

    def enter(self, request: Request) -> None:
        tenant = request.lane
        if tenant not in self._present:
            least = min((self._debts[other] for other in self._present), default=self._last_debt)
            self._debts[tenant] = max(self._debts.get(tenant, 0.0), least)
        self._present[tenant] = self._present.get(tenant, 0) + 1

    def leave(self, request: Request) -> None:
        tenant = request.lane
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant]
            self._last_debt = self._debts[tenant]

    def price(self, request: Request) -> float:
        num_prompt_tokens = 0 if request.started is not None else request.num_prompt_tokens
        num_drawn = len(request.family) * (request.max_tokens - request.num_output_tokens)
        return self._cost(request, num_prompt_tokens, num_drawn)

    def charge(self, request: Request, num_prompt_tokens: int, num_drawn: int) -> None:
        self._debts[request.lane] += self._cost(request, num_prompt_tokens, num_drawn)

    def _cost(self, request: Request, num_prompt_tokens: int, num_drawn: int) -> float:
        work = num_prompt_tokens + self.DRAWN_TOKEN_COST * num_drawn
        return work / self._weights.get(request.lane, 1.0)


POLICY_NAMES = (FirstComeFirstServed.name, PriorityWithAging.name, FairShare.name)


def lowest(policy: Policy, requests: Iterable[Request]) -> Request:
    """The request that goes last, those with a reservation before all others."""
    return max(requests, key=lambda request: (not request.holds_reservation, policy.rank(request)))
