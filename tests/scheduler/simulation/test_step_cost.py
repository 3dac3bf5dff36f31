"""What a step costs, and how much context it reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from block_manager.groups import plan_groups
from block_manager.transfers import Transfer, TransferKind
from scheduler.batch import ScheduledBatch
from scheduler.simulation.step_cost import StepCost, context_tokens


@pytest.fixture
def batch(simulate) -> ScheduledBatch:
    """One token behind 100 others, and a prompt of 40."""
    simulation = simulate(num_pages=20, budget=100)
    simulation.add("first", 100, 5)
    simulation.step()
    simulation.add("second", 40, 5)
    return simulation.schedule()


def test_a_step_costs_a_base_its_tokens_its_context_and_its_moves(batch) -> None:
    moves = (Transfer(TransferKind.OUT, (1, 2, 3), (4, 5, 6)),)
    cost = StepCost(base=1000.0, per_token=10.0, per_context_token=1.0, per_moved_page=0.1)

    assert cost.seconds(replace(batch, transfers=moves), 41, plan_groups([None])) == pytest.approx(
        1000 + 410 + (101 + 40) + 0.3
    )


def test_layers_with_a_window_read_no_more_than_it(batch) -> None:
    assert context_tokens(batch, plan_groups([16])) == 16 + 40
    assert context_tokens(batch, plan_groups([16, None, 16, 16])) == (3 * 56 + 141) / 4
