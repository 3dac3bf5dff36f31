"""Pages move in the order of a device's queue: nobody waits, and whatever comes later finds them."""

from __future__ import annotations

import random

import pytest
import torch

from block_manager.groups import plan_groups
from block_manager.kv_cache import KVCache
from engine.page_copies import queue_copy, queue_in, queue_out
from tests.engine.fake_device import FakeStream

DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)


def cache(num_pages: int, dtype: torch.dtype = torch.float32) -> KVCache:
    """Pages of 2 layers that each hold their own number."""
    made = KVCache(plan_groups([None, None]), num_pages, 4, 2, 8, dtype, torch.device("cpu"))
    for tensor in made.tensors():
        tensor.copy_(torch.arange(num_pages + 1).view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))
    return made


def contents(pages: KVCache) -> list[int]:
    """The number in each page, the same in all of it."""
    first, *others = [tensor.float().flatten(1) for tensor in pages.tensors()]
    assert all(torch.equal(tensor.amin(1), first[:, 0]) for tensor in others)
    assert all(torch.equal(tensor.amax(1), first[:, 0]) for tensor in (first, *others))
    return [int(number) for number in first[:, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_moves_end_as_if_each_had_been_waited_for(dtype: torch.dtype) -> None:
    source, stream = random.Random(3), FakeStream()
    device, host = cache(9, dtype), cache(5, dtype)
    in_device, in_host = list(range(10)), list(range(6))
    for _ in range(60):
        kind, count = source.choice(["copy", "out", "in"]), source.randrange(1, 4)
        pages, kept = source.sample(range(1, 10), 2 * count), source.sample(range(1, 6), count)
        if kind == "copy":
            queue_copy(device, pages[:count], pages[count:])
            for origin, goal in zip(pages[:count], pages[count:], strict=True):
                in_device[goal] = in_device[origin]
        elif kind == "out":
            queue_out(stream, device, host, pages[:count], kept)
            for origin, goal in zip(pages[:count], kept, strict=True):
                in_host[goal] = in_device[origin]
        else:
            queue_in(stream, device, host, kept, pages[:count])
            for origin, goal in zip(kept, pages[:count], strict=True):
                in_device[goal] = in_host[origin]
        assert contents(device) == in_device
    assert stream.log.count("read") == 0
    stream.record().wait()
    assert contents(host) == in_host


def test_a_page_of_the_host_is_given_away_before_its_copy_has_come() -> None:
    device, host, stream = cache(3), cache(1), FakeStream()
    queue_out(stream, device, host, [1], [1])
    queue_in(stream, device, host, [1], [3])
    queue_out(stream, device, host, [2], [1])
    assert len(stream.open) > 0
    assert contents(device) == [0, 1, 2, 1]
    stream.record().wait()
    assert contents(host) == [0, 2]


def test_pages_that_lie_behind_each_other_on_the_host_move_together() -> None:
    device, host, stream = cache(6), cache(6), FakeStream()
    queue_in(stream, device, host, [5, 2, 4, 1], [1, 2, 3, 4])
    page = host.tensors()[0][0].nbytes
    assert stream.uploads == [4 * 8] + [2 * page, 2 * page] * len(host.tensors())
    assert contents(device) == [0, 5, 2, 4, 1, 5, 6]
