"""Fairness: how evenly tenants were served, for what their weights entitle them to.

The measure is Jain's index (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
Allocation in Shared Computer Systems", DEC TR-301, 1984). For n tenants that got x_i = service_i / weight_i:

    J = (x_1 + ... + x_n)^2 / (n (x_1^2 + ... + x_n^2))

It is 1 where all got the same, and 1/n where one got everything. Service is counted as the fair policy charges it: a
computed prompt token 1, a drawn token 2. Once everybody has been served, service is only what was asked for, whatever
the policy; so the index is also taken over the time in which tenants competed: window by window, over those tenants of
which somebody waited all the window long.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from scheduler.policy import FairShare


def jain_index(shares: Iterable[float]) -> float:
    """Jain's index of what each got, 1/n to 1; 1 where nobody got anything."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


class Tenant:
    """What one tenant got: ``service`` so far, in tokens as charged; ``num_waiting`` requests have no token yet."""

    __slots__ = ("_before", "always_waited", "num_waiting", "service", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.service = 0.0
        self.num_waiting = 0
        self.always_waited = False  # since the window began
        self._before = 0.0

    def left_queue(self) -> None:
        """One of its requests waits no more."""
        self.num_waiting -= 1
        if not self.num_waiting:
            self.always_waited = False

    def take_share(self) -> float:
        """Service over weight in the window that ends now; another begins."""
        share = (self.service - self._before) / self.weight
        self._before = self.service
        self.always_waited = self.num_waiting > 0
        return share


class Fairness:
    """All tenants, each known from its first request on; 1 is the weight of those without one in ``weights``."""

    TOKEN_DRAWN = FairShare.DRAWN_TOKEN_COST

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tenants: dict[str, Tenant] = {}
        self._windows: list[float] = []

    def arrived(self, name: str) -> Tenant:
        """A request of tenant ``name`` waits from now on."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(self._weights.get(name, 1.0))
        tenant.num_waiting += 1
        return tenant

    def end_window(self) -> None:
        """Take the index of the window that ends, over the tenants that competed in it."""
        if len(self._tenants) < 2:
            return
        competed = [(tenant.always_waited, tenant.take_share()) for tenant in self._tenants.values()]
        shares = [share for waited, share in competed if waited]
        if len(shares) > 1:
            self._windows.append(jain_index(shares))

    @property
    def num_tenants(self) -> int:
        return len(self._tenants)

    @property
    def index(self) -> float:
        """Over all that was served."""
        return jain_index(tenant.service / tenant.weight for tenant in self._tenants.values())

    @property
    def index_while_waiting(self) -> float | None:
        """Mean over the windows in which tenants competed; None when they never did."""
        return statistics.fmean(self._windows) if self._windows else None
