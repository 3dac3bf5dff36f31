"""Settings: everything about a simulated server but the number of its pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from block_manager.groups import LayerGroup, plan_groups
from block_manager.manager import BlockManager
from scheduler.config import SchedulerConfig
from scheduler.policy import FairShare, FirstComeFirstServed, Policy, PriorityWithAging
from scheduler.scheduler import Scheduler
from scheduler.simulation.step_cost import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``windows`` has one entry for each layer, None where it sees everything. Timeouts are in seconds, None: none.

    Every ``forecast_every``-th arrival is told when it will start, and every ``waste_every``-th step counts unfilled
    slots: both cost time.
    """

    limits: SchedulerConfig
    cost: StepCost
    windows: tuple[int | None, ...] = (None,)
    block_size: int = 16
    prefix_caching: bool = True
    num_host_pages: int = 0
    policy: str = FirstComeFirstServed.name
    priority_aging: float = 10.0
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    queue_timeout: float | None = None
    timeout: float | None = None
    forecast_every: int = 100
    waste_every: int = 64

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The layers by window."""
        return plan_groups(self.windows)

    def scheduler(self, num_pages: int, clock: Callable[[], float]) -> Scheduler:
        """The product's own scheduler over its own block manager of ``num_pages`` pages."""
        blocks = BlockManager(
            self.groups,
            num_pages,
            self.block_size,
            enable_prefix_caching=self.prefix_caching,
            num_host_pages=self.num_host_pages,
            clock=clock,
        )
        return Scheduler(self.limits, blocks, self._policy(), clock=clock)

    def _policy(self) -> Policy:
        if self.policy == PriorityWithAging.name:
            return PriorityWithAging(self.priority_aging)
        if self.policy == FairShare.name:
            return FairShare(self.tenant_weights)
        return FirstComeFirstServed()


def parse_windows(text: str) -> tuple[int | None, ...]:
    """The windows of all layers from ``full``, ``512x15, full x3`` and the like; ValueError when it is not that.

    Parts are separated by commas; each is a window in tokens, or ``full``, and may be followed by ``x`` and a number
    of layers.
    """
    windows: list[int | None] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(full|[1-9]\d*)\s*(?:x\s*([1-9]\d*))?\s*", part)
        if match is None:
            raise ValueError(f"{part.strip()!r} is neither full nor a window in tokens, with xN for N such layers")
        window = None if match[1] == "full" else int(match[1])
        windows += [window] * int(match[2] or 1)
    return tuple(windows)
