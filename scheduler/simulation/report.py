"""Report: the result of one run as values, and several of them as a table or as JSON.

Times are in seconds and on the simulated clock, sizes in tokens or pages, shares from 0 to 1 (in the table, per cent).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from scheduler.simulation.forecast_error import ErrorSummary
from scheduler.simulation.histogram import Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run came to. ``seconds`` from the first arrival to the last end, ``busy_seconds`` of them in steps.

    ``submitted`` = ``finished`` + all ``refusals``, by reason. ``preemptions`` by kind and by what the pages were
    wanted for. ``queue_wait`` is from arrival to first start; ``longest_wait`` includes those that never started.
    ``ttft_p99_of_all``: each request that was refused waits for ever. ``fairness`` is Jain's index over all service,
    ``fairness_while_waiting`` over the time in which tenants competed (see `fairness`).
    """

    num_pages: int
    block_size: int
    submitted: int
    finished: int
    refusals: Mapping[str, int]
    seconds: float
    busy_seconds: float
    steps: int
    prompt_tokens: int
    cached_prompt_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    preemptions: Mapping[str, int]
    overtakes: int
    evicted_pages: int
    peak_held_pages: int
    mean_held_pages: float
    internal_waste: float
    ttft: Percentiles
    itl: Percentiles
    queue_wait: Percentiles
    longest_wait: float
    ttft_p99_of_all: float
    max_queue: int
    mean_queue: float
    num_tenants: int
    fairness: float
    fairness_while_waiting: float | None
    start_forecast: ErrorSummary
    retry_after: ErrorSummary

    @property
    def num_preemptions(self) -> int:
        return sum(self.preemptions.values())

    @property
    def preemption_share(self) -> float:
        """Preemptions for each submitted request."""
        return _ratio(self.num_preemptions, self.submitted)

    @property
    def recomputed_share(self) -> float:
        """Of all tokens that were computed, those that had been computed before."""
        return _ratio(self.recomputed_tokens, self.computed_tokens)

    @property
    def prefix_hit_share(self) -> float:
        """Of all prompt tokens that started, those that were found in the cache."""
        return _ratio(self.cached_prompt_tokens, self.prompt_tokens)

    @property
    def generated_per_second(self) -> float:
        return _ratio(self.generated_tokens, self.seconds)

    @property
    def computed_per_second(self) -> float:
        return _ratio(self.computed_tokens, self.seconds)


DERIVED = (
    "num_preemptions",
    "preemption_share",
    "recomputed_share",
    "prefix_hit_share",
    "generated_per_second",
    "computed_per_second",
)


def to_json(reports: Sequence[Report]) -> str:
    """A list with one object for each run: all fields and derived values; what is infinite is null."""
    runs = [{**asdict(report), **{name: getattr(report, name) for name in DERIVED}} for report in reports]
    for run in runs:
        for name, value in run.items():
            if isinstance(value, float) and not math.isfinite(value):
                run[name] = None
    return json.dumps(runs, indent=1)


def to_table(reports: Sequence[Report]) -> str:
    """Lines of text: a row for each figure, a column for each run."""
    rows = [(label, [cell(report) for report in reports]) for label, cell in _rows(reports)]
    wide = max(len(label) for label, _ in rows)
    columns = [max(len(cells[i]) for _, cells in rows) for i in range(len(reports))]
    lines = []
    for label, cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, columns, strict=True)]
        lines.append("  ".join([label.ljust(wide), *padded]).rstrip())
    return "\n".join(lines)


Row = tuple[str, Callable[[Report], str]]


def _rows(reports: Sequence[Report]) -> list[Row]:
    reasons = sorted({reason for report in reports for reason in report.refusals})
    kinds = sorted({kind for report in reports for kind in report.preemptions})
    rows: list[Row] = [
        ("pages", lambda r: f"{r.num_pages:,}"),
        ("requests", lambda r: f"{r.submitted:,}"),
        ("  finished", lambda r: f"{r.finished:,}"),
        *[(f"  refused: {reason}", _counted("refusals", reason)) for reason in reasons],
        ("simulated time, s", lambda r: _seconds(r.seconds)),
        ("  in steps", lambda r: _per_cent(_ratio(r.busy_seconds, r.seconds))),
        ("steps", lambda r: f"{r.steps:,}"),
        ("generated tokens/s", lambda r: f"{r.generated_per_second:,.0f}"),
        ("computed tokens/s", lambda r: f"{r.computed_per_second:,.0f}"),
        ("preemptions", lambda r: f"{r.num_preemptions:,}"),
        *[(f"  {kind}", _counted("preemptions", kind)) for kind in kinds],
        ("  per request", lambda r: _per_cent(r.preemption_share)),
        ("recomputed tokens", lambda r: f"{r.recomputed_tokens:,}"),
        ("  of all computed", lambda r: _per_cent(r.recomputed_share)),
        ("prompt tokens from cache", lambda r: _per_cent(r.prefix_hit_share)),
        ("pages held, peak", lambda r: f"{r.peak_held_pages:,}"),
        ("pages held, mean", lambda r: f"{r.mean_held_pages:,.0f}"),
        ("held slots not filled", lambda r: _per_cent(r.internal_waste)),
        *_percentile_rows("TTFT", "ttft"),
        *_percentile_rows("ITL", "itl"),
        *_percentile_rows("queue wait", "queue_wait"),
        ("longest wait, s", lambda r: _seconds(r.longest_wait)),
        ("queue length, mean", lambda r: f"{r.mean_queue:,.1f}"),
        ("queue length, max", lambda r: f"{r.max_queue:,}"),
        ("overtakes", lambda r: f"{r.overtakes:,}"),
    ]
    if any(report.num_tenants > 1 for report in reports):
        rows += [
            ("fairness (Jain), all service", lambda r: f"{r.fairness:.3f}"),
            ("fairness (Jain), while waiting", lambda r: _optional(r.fairness_while_waiting)),
        ]
    if any(report.start_forecast.count for report in reports):
        rows += _error_rows("start forecasts", "start_forecast")
    if any(report.retry_after.count for report in reports):
        rows += _error_rows("Retry-After answers", "retry_after")
    return rows


def _counted(field: str, key: str) -> Callable[[Report], str]:
    return lambda report: f"{getattr(report, field).get(key, 0):,}"


def _percentile_rows(label: str, field: str) -> list[Row]:
    def row(name: str) -> Row:
        return f"{label} {name}, s", lambda report: _seconds(getattr(getattr(report, field), name))

    return [row(name) for name in ("p50", "p90", "p99", "max")]


def _error_rows(label: str, field: str) -> list[Row]:
    def of(report: Report) -> ErrorSummary:
        summary = getattr(report, field)
        assert isinstance(summary, ErrorSummary)
        return summary

    return [
        (f"{label} compared", lambda r: f"{of(r).count:,}"),
        ("  median error, s", lambda r: _seconds(of(r).median_absolute_error)),
        ("  median told / real", lambda r: f"{of(r).median_ratio:.2f}"),
        ("  within a factor of 2", lambda r: _per_cent(of(r).within_2)),
    ]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 100 else f"{value:.3f}"


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
