"""The reserve: which pages are made ready, how many, and that pages in use stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from block_manager.block_pool import BlockPool
from block_manager.groups import plan_groups
from block_manager.kv_cache import KVCache
from engine.messages import Shutdown
from engine.page_reserve import PORTION_BYTES, PageReserve
from engine.process import run

HOLDER = 1
NUM_PAGES = 40
READY = 8


class Touches(KVCache):
    """Pages that say which of them were touched."""

    def __init__(self, head_dim: int = 64) -> None:
        super().__init__(plan_groups([None]), NUM_PAGES, 16, 1, head_dim, torch.float32, torch.device("cpu"))
        self.touched: list[int] = []

    def touch(self, pages: list[int]) -> None:
        super().touch(pages)
        self.touched += pages


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(NUM_PAGES, 1)


def reserve_of(pool: BlockPool, cache: KVCache) -> PageReserve:
    return PageReserve(pool, cache, READY * cache.page_bytes)


def fill(reserve: PageReserve) -> None:
    assert not all(reserve.advance() for _ in range(NUM_PAGES)), "it never ends"


def test_as_many_pages_are_made_ready_as_the_bytes_allow_and_no_more(pool: BlockPool) -> None:
    cache = Touches()
    reserve = reserve_of(pool, cache)
    assert reserve.due == 0.0
    fill(reserve)
    assert cache.touched == [1, 2, 3, 4, 5, 6, 7, 8]
    assert reserve.due is None
    assert not reserve.advance()


def test_pages_that_were_taken_are_replaced_by_the_next_fresh_ones(pool: BlockPool) -> None:
    cache = Touches()
    reserve = reserve_of(pool, cache)
    fill(reserve)
    pool.allocate(0, 10, HOLDER)
    assert reserve.due == 0.0
    fill(reserve)
    assert cache.touched == [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18]


def test_pages_that_came_back_are_ready_already(pool: BlockPool) -> None:
    cache = Touches()
    reserve = reserve_of(pool, cache)
    block = pool.allocate(0, 6, HOLDER)
    fill(reserve)
    pool.release(block, HOLDER)
    assert pool.next_pages(READY) == [6, 5, 4, 3, 2, 1, 7, 8]
    assert reserve.due is None
    assert cache.touched == [7, 8, 9, 10, 11, 12, 13, 14]


def test_pages_in_use_keep_what_they_hold(pool: BlockPool) -> None:
    cache = Touches()
    reserve = reserve_of(pool, cache)
    for tensor in cache.tensors():
        tensor.fill_(3.0)
    held = list(pool.allocate(0, 5, HOLDER).pages)
    fill(reserve)
    assert all((tensor[held] == 3.0).all() for tensor in cache.tensors())


def test_a_pool_that_is_smaller_than_the_reserve_is_made_ready_whole(pool: BlockPool) -> None:
    cache = Touches()
    fill(PageReserve(pool, cache))
    assert cache.touched == list(range(1, NUM_PAGES + 1))


def test_pages_are_made_ready_a_portion_at_a_time_but_one_at_least(pool: BlockPool) -> None:
    cache = Touches(head_dim=PORTION_BYTES // 2 // (2 * 16 * 4) - 1)
    reserve = reserve_of(pool, cache)
    assert reserve.advance()
    assert cache.touched == [1, 2]
    large = Touches(head_dim=PORTION_BYTES // 64)
    assert reserve_of(pool, large).advance()
    assert large.touched == [1]


def test_an_engine_without_work_fills_its_reserve_between_looks_for_messages_and_then_sleeps(
    rig: Callable[..., object], tiny_llama_dir: Path
) -> None:
    engine = rig(tiny_llama_dir, num_gpu_blocks_override=NUM_PAGES).engine
    timeouts = []

    class Inbox:
        """Empty until the engine would sleep."""

        def receive(self, timeout: float | None) -> list[Shutdown]:
            timeouts.append(timeout)
            return [] if timeout == 0.0 and len(timeouts) < NUM_PAGES else [Shutdown()]

    (reserve,) = (work for work in engine.idle_work if isinstance(work, PageReserve))
    assert reserve.due == 0.0
    run(engine, Inbox())
    assert reserve.due is None
    assert timeouts == [0.0, None]
