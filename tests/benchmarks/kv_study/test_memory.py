"""Bytes of every way of keeping a cache, by hand; pages as the block manager counts them."""

from __future__ import annotations

import pytest
import torch

from benchmarks import page_waste
from benchmarks.kv_study.memory import (
    FIRST_CAPACITY,
    Memory,
    doubled_capacity,
    mean_sizes,
    measure_mix,
    pages_by_length,
)
from benchmarks.kv_study.study import Study
from block_manager.groups import plan_groups
from engine.page_plan import PagePlan

from .conftest import TINY


def plan(*windows: int | None) -> PagePlan:
    """Two KV heads of 8 in bfloat16: 64 bytes a token and layer."""
    return PagePlan(plan_groups(windows), 16, 2, 8, torch.bfloat16)


@pytest.mark.parametrize(("length", "capacity"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (4097, 8192)])
def test_a_doubling_cache_has_room_for_the_next_power_of_two(length: int, capacity: int) -> None:
    assert doubled_capacity(length) == capacity


def test_pages_are_whole_blocks_and_waste_less_than_one() -> None:
    found = pages_by_length(plan(None, None, None), 100)
    token = 3 * 64
    assert [one.length for one in found] == list(range(1, 101))
    assert all(one.held == -(-one.length // 16) * 16 * token for one in found)
    assert all(one.wasted == one.held - one.length * token for one in found)
    assert max(one.wasted for one in found) == 15 * token


def test_windowed_layers_stop_growing_when_their_window_is_full() -> None:
    found = pages_by_length(plan(None, 32, 32), 200)
    block = 16 * 64
    # at 32 positions all layers have 2 blocks; at 200, 13 for the full one and window / 16 + 1 at most for the others
    assert found[31].held == 2 * block * 3
    held = found[199].held - 13 * block
    assert held in (2 * 2 * block, 2 * 3 * block)
    assert found[199].wasted == (13 * 16 - 200) * 64 * 3


def test_copies_and_reservations_are_arithmetic(study: Study) -> None:
    mix = study.memory.mix
    memory = Memory(10, 16, 1000, (), (), mix)
    assert memory.reserved() == 10_000
    assert memory.doubling(100) == 1280
    # 16, 32 and 64 tokens were moved
    assert memory.doubling_copied(100) == (16 + 32 + 64) * 10
    assert memory.doubling_copied(FIRST_CAPACITY) == 0


def test_the_mean_request_is_weighted_by_its_steps() -> None:
    # lengths 16, 17 of one request, 40 of another
    assert mean_sizes([(16, 2), (40, 1)], 16) == (73 / 3, (16 + 32 + 64) / 3, (16 + 32 + 48) / 3)


def test_the_mix_is_what_page_waste_measures() -> None:
    uniform = plan(None, None)
    mix = measure_mix(uniform, plan(None, 32), TINY)
    report = page_waste.run_trace(TINY.memory_requests, TINY.memory_pages, (None, None))
    assert (mix.pages, mix.pages_waste) == (report.running, report.waste)
    assert mix.reserved == report.reserved
    assert mix.memory == TINY.memory_pages * 16 * 2 * 64
    assert mix.reserved_waste > mix.doubling_waste > mix.pages_waste
