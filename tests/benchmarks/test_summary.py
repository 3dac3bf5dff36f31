from __future__ import annotations

from typing import Any

import pytest

from benchmarks.stream import RequestRecord, failed
from benchmarks.summary import Distribution, format_table, medians, percentile, summarise

FIRST = RequestRecord(sent=10.0, chunk_times=(10.5, 10.75, 11.0), output_tokens=5, prompt_tokens=100, cached_tokens=64)
SECOND = RequestRecord(sent=11.0, chunk_times=(11.25, 12.0), output_tokens=2, prompt_tokens=50)


def test_times_are_measured_from_sending_between_chunks_and_per_token() -> None:
    summary = summarise([FIRST, SECOND], wall_seconds=2.0)

    assert summary.ttft_ms == Distribution(mean=375.0, p50=375.0, p99=pytest.approx(497.5), max=500.0)
    assert summary.itl_ms.mean == pytest.approx(1250 / 3)
    assert (summary.itl_ms.p50, summary.itl_ms.max) == (250.0, 750.0)
    # 500 ms over the four tokens after the first, and 750 ms over one
    assert (summary.tpot_ms.mean, summary.tpot_ms.max) == (437.5, 750.0)
    assert summary.e2e_ms.mean == 1000.0


def test_rates_are_per_second_of_wall_time() -> None:
    summary = summarise([FIRST, SECOND], wall_seconds=2.0)

    assert (summary.output_tokens, summary.input_tokens, summary.cached_tokens, summary.chunks) == (7, 150, 64, 5)
    assert summary.output_tokens_per_second == 3.5
    assert summary.total_tokens_per_second == 78.5
    assert summary.requests_per_second == 1.0


def test_a_failed_request_counts_as_an_error_and_in_nothing_else() -> None:
    summary = summarise([FIRST, failed(0.0, "503 busy"), failed(0.0, "later")], wall_seconds=2.0)

    assert (summary.requests, summary.errors, summary.first_error) == (3, 2, "503 busy")
    assert summary.output_tokens == 5
    assert summary.requests_per_second == 0.5
    assert summary.ttft_ms.mean == 500.0


def test_a_run_without_any_answer_has_no_times_rather_than_zeros() -> None:
    summary = summarise([failed(0.0, "refused")], wall_seconds=1.0)

    nothing = Distribution(mean=None, p50=None, p99=None, max=None)
    assert (summary.ttft_ms, summary.itl_ms, summary.tpot_ms, summary.e2e_ms) == (nothing,) * 4
    assert summary.output_tokens_per_second == 0.0


def test_one_unknown_prompt_length_makes_the_total_unknown() -> None:
    summary = summarise([FIRST, RequestRecord(sent=0.0, chunk_times=(1.0,), output_tokens=1)], wall_seconds=1.0)

    assert summary.input_tokens is None
    assert summary.total_tokens_per_second is None


def test_a_request_of_one_token_has_no_time_per_token_after_the_first() -> None:
    summary = summarise([RequestRecord(sent=0.0, chunk_times=(1.0,), output_tokens=1)], wall_seconds=1.0)

    assert summary.tpot_ms.p50 is None
    assert summary.itl_ms.p50 is None


@pytest.mark.parametrize(
    ("sample", "fraction", "value"),
    [
        ([], 0.5, None),
        ([3.0], 0.99, 3.0),
        ([4.0, 2.0], 0.5, 3.0),
        ([0.0, 10.0, 20.0], 0.75, 15.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_percentiles_are_linear_between_neighbours(sample: list[float], fraction: float, value: float | None) -> None:
    assert percentile(sample, fraction) == value


def result(label: str, load: str, out_per_s: float, errors: int = 0, other: float | None = None) -> dict[str, Any]:
    wall = 100.0
    tokens = round(out_per_s * wall)
    records = [RequestRecord(sent=0.0, chunk_times=(1.0, 2.0), output_tokens=tokens, prompt_tokens=3)]
    records += [failed(0.0, "x")] * errors
    return {
        "label": label,
        "workload": {"name": load},
        "summary": summarise(records, wall).to_dict(),
        "other_cpu_share": other,
    }


def test_repeats_become_medians_and_servers_stand_side_by_side() -> None:
    rows = medians(
        [
            result("ours", "W1", 10.0),
            result("ours", "W1", 50.0, errors=1, other=0.25),
            result("ours", "W1", 20.0, errors=2),
            result("ours", "W2", 5.0),
            result("peer", "W1", 40.0),
        ]
    )

    assert [(row.load, row.label, row.repeats) for row in rows] == [
        ("W1", "ours", 3),
        ("W1", "peer", 1),
        ("W2", "ours", 1),
    ]
    assert [row.out_per_s for row in rows] == [20.0, 40.0, 5.0]
    assert (rows[0].errors, rows[0].other_cpu, rows[1].other_cpu) == (3, 0.25, None)


def test_the_table_has_a_line_per_row_of_equal_width_and_marks_what_is_unknown() -> None:
    lines = format_table(medians([result("ours", "W1", 1234.0), result("a longer name", "W1", 5.0)])).splitlines()

    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:4] == ["ours", "W1", "1", "0"]
    assert "1,234" in cells
    assert cells[-1] == "-"
