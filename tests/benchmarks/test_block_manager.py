"""The block manager's benchmark measures what it says, on pools that come out as they went in."""

from __future__ import annotations

import pytest

from benchmarks.block_manager import Pool, Row, main, table


def test_every_operation_leaves_a_sound_pool_of_the_same_state() -> None:
    pool = Pool(1_000)
    usage = pool.blocks.usage()
    assert usage.total == 1_000
    for operation in pool.operations():
        for _ in range(3):
            assert operation.sample() > 0
        assert pool.blocks.audit() == [], operation.name
        after = pool.blocks.usage()
        assert (after.held, after.cached) == (usage.held, usage.cached), operation.name


def test_half_of_a_pool_is_held_and_a_quarter_cached_and_free() -> None:
    usage = Pool(10_000).blocks.usage()
    assert usage.held / usage.total == pytest.approx(0.5, abs=0.02)
    assert usage.cached / usage.total == pytest.approx(0.25, abs=0.02)


def test_the_table_has_a_column_per_size_and_the_ratio_of_dearest_to_cheapest() -> None:
    rows = [Row("fork", "page", (0.5, 0.75))]
    assert rows[0].ratio == 1.5
    assert table(rows, [1_000, 2_000]).splitlines() == [
        "| us per | 1,000 pages | 2,000 pages | max / min |",
        "|---|---|---|---|",
        "| page: fork | 0.500 | 0.750 | 1.50 |",
    ]


def test_the_command_prints_conditions_figures_and_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pages", "1000,2000", "--repeats", "3"]) == 0
    printed = capsys.readouterr().out
    assert "medians of 3 samples, thread time, one thread; page size 16" in printed
    assert "| page: match a prefix |" in printed
    assert "measured on another machine" in printed
