"""Small simulated servers, whose steps take times that can be added up by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from scheduler.config import SchedulerConfig
from scheduler.simulation.report import Report
from scheduler.simulation.settings import Settings
from scheduler.simulation.simulator import Simulator
from scheduler.simulation.step_cost import StepCost
from scheduler.simulation.trace import TraceRequest


def small_settings(*, base: float = 1.0, per_token: float = 0.0, max_num_seqs: int = 8, **changes: object) -> Settings:
    """Pages of 2 tokens, every step looked at, a second a step."""
    names = ("max_queued_requests", "max_queued_tokens", "max_overtakes")
    limits = {name: changes.pop(name) for name in names if name in changes}
    return Settings(
        limits=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64, watermark_tokens=0, **limits),
        cost=StepCost(base=base, per_token=per_token),
        **{"block_size": 2, "waste_every": 1, "forecast_every": 1, **changes},
    )


def run_trace(requests: Iterable[TraceRequest], num_pages: int = 100, **changes: object) -> Report:
    return Simulator(small_settings(**changes), num_pages, requests).run()


@pytest.fixture(scope="session")
def simulate_trace() -> Callable[..., Report]:
    """Run requests over ``num_pages`` pages; further arguments as of `small_settings`."""
    return run_trace


@pytest.fixture(scope="session")
def settings() -> Callable[..., Settings]:
    return small_settings
