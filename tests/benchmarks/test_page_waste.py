"""Waste and capacity: the targets hold, and the arithmetic agrees with the block manager."""

from __future__ import annotations

import pytest

from benchmarks.page_waste import BLOCK_SIZE, GEMMA3_270M, LONGEST, hybrid_capacity, lengths, main, run_trace
from block_manager.groups import layers_per_page, plan_groups
from block_manager.hashing import BlockHashes
from block_manager.manager import BlockManager


def test_the_trace_is_always_the_same_and_has_the_lengths_it_says() -> None:
    trace = lengths(2_000)
    assert trace == lengths(2_000)
    assert sum(num_input for num_input, _ in trace) / 2_000 == pytest.approx(300, rel=0.1)
    assert sum(num_output for _, num_output in trace) / 2_000 == pytest.approx(200, rel=0.1)
    assert max(num_input + num_output for num_input, num_output in trace) <= LONGEST
    assert min(map(min, trace)) >= 1


def test_less_than_four_percent_of_held_slots_are_empty_and_no_page_is_stranded() -> None:
    report = run_trace(300, 1_024)
    assert report.waste < 0.04
    assert report.stranded_pages == 0
    assert report.reserved == 1_024 * BLOCK_SIZE // LONGEST
    assert report.capacity_ratio > 2
    assert report.steps > 100


def test_windows_hold_four_and_a_half_times_the_sequences_of_an_all_full_layout() -> None:
    """By the arithmetic, and by pages that a sequence of 8,192 tokens really holds."""

    def held(windows: tuple[int | None, ...]) -> int:
        blocks = BlockManager(plan_groups(windows), 20_000, BLOCK_SIZE, enable_prefix_caching=False)
        hashes = BlockHashes(BLOCK_SIZE)
        assert blocks.admit("s", blocks.match_prefix(hashes, 8_191), 8_191)
        blocks.commit("s", 8_191, hashes)
        assert blocks.grow("s", 8_192)
        return blocks.usage().held * layers_per_page(blocks.groups)

    measured = held((None,) * 18) / held(GEMMA3_270M)
    assert measured == pytest.approx(hybrid_capacity(), rel=0.02)
    assert 4.4 < hybrid_capacity() < 4.7


def test_the_command_prints_figures_beside_their_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "40", "--pages", "256"]) == 0
    printed = capsys.readouterr().out
    assert "40 requests, log-normal" in printed
    assert "| < 4 % |" in printed
