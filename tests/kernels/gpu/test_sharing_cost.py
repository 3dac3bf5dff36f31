"""Sharing pays where reads that are saved take longer than launches that a graph saves: numbers of Llama 3.1 8B."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels.gpu.sharing_cost import GAP_SECONDS, LAUNCH_SECONDS, LAUNCHES_PER_LAYER, SharedReads, SharingCost
from kernels.roofline import H200, AttentionShape

LLAMA_8B = SharingCost(H200, AttentionShape(32, 8, 128), (None,) * 32, weight_bytes=16_000_000_000)


def pays(batch: int, prefix: int, own: int, *, is_recorded: bool = True, cost: SharingCost = LLAMA_8B) -> bool:
    """Whether decodes that all share a prefix do better to read it once."""
    reads = SharedReads((batch - 1) * prefix, batch)
    return cost.pays(reads, np.full(batch, prefix + own), batch, is_recorded=is_recorded)


def test_a_step_takes_what_its_weights_and_pages_take_at_the_bandwidth() -> None:
    seconds = LLAMA_8B.seconds(np.array([1000, 3000]), 2, is_recorded=True)
    gaps = 32 * LAUNCHES_PER_LAYER * GAP_SECONDS
    assert seconds == pytest.approx((16e9 + 4000 * 131_072) / 4.8e12 + gaps)


def test_a_step_that_is_launched_kernel_by_kernel_takes_the_host_at_least_its_launches() -> None:
    assert LLAMA_8B.seconds(np.array([10]), 1) == pytest.approx(32 * LAUNCHES_PER_LAYER * LAUNCH_SECONDS)
    long = np.full(64, 8192)
    assert LLAMA_8B.seconds(long, 64) == LLAMA_8B.seconds(long, 64, is_recorded=True)


def test_a_chunk_of_a_prompt_takes_what_its_products_take() -> None:
    chunk = LLAMA_8B.seconds(np.array([4096]), 4096)
    assert chunk == pytest.approx(
        16e9 * 4096 / 989.5e12 + 4096 * 131_072 / 4.8e12 + 32 * LAUNCHES_PER_LAYER * GAP_SECONDS
    )


@pytest.mark.parametrize(
    ("batch", "prefix", "recorded", "shared", "expected"),
    [
        (64, 8192, 18.93, 6.24, True),
        (256, 1024, 15.26, 8.39, True),
        (64, 64, 4.72, 6.24, False),  # shared, the host's launches take longest
        (2, 8192, 4.19, 6.24, False),
        (32, 3072, 6.85, 6.24, False),  # less than a tenth
    ],
)
def test_decodes_leave_their_graph_for_long_prefixes_of_many(
    batch: int, prefix: int, recorded: float, shared: float, expected: bool
) -> None:
    """Milliseconds."""
    lens, reads = np.full(batch, prefix + 512), SharedReads((batch - 1) * prefix, batch)
    assert 1e3 * LLAMA_8B.seconds(lens, batch, is_recorded=True) == pytest.approx(recorded, abs=0.005)
    assert 1e3 * LLAMA_8B.seconds(lens, batch, reads=reads) == pytest.approx(shared, abs=0.005)
    assert pays(batch, prefix, 512) == expected


def test_without_a_graph_the_launches_are_the_hosts_either_way() -> None:
    assert not pays(4, 8192, 8192)
    assert not pays(4, 8192, 8192, is_recorded=False)  # both wait for the host
    assert not pays(24, 3072, 512, is_recorded=False)
    assert pays(48, 3072, 512, is_recorded=False)


def test_layers_with_a_window_save_nothing() -> None:
    windowed = replace(LLAMA_8B, windows=(512,) * 31 + (None,))
    assert pays(64, 2048, 512)
    assert not pays(64, 2048, 512, cost=windowed)
    seen = 31 * 2 * 512 + 2 * 8192 - 8000
    seconds = windowed.seconds(np.full(2, 8192), 2, reads=SharedReads(8000, 0), is_recorded=True)
    gaps = (32 * LAUNCHES_PER_LAYER + 1) * GAP_SECONDS
    assert seconds == pytest.approx((16e9 + seen * 4096) / 4.8e12 + gaps)


def test_a_member_must_save_what_its_partial_rows_cost() -> None:
    """Of 32 heads, four of 129 numbers in float32, twice; a token's key and value are 4096 bytes."""
    assert LLAMA_8B.least_gain == pytest.approx(2 * 4 * 32 * 129 * 4 / 4096)
