"""Arithmetic on records: TTFT, ITL, TPOT, rates, percentiles, medians of repeats, and the table that shows them.

Does not know HTTP, workloads or the machine. Invariants: times are in milliseconds and rates per second of wall time;
failed requests count as errors and in nothing else; a figure that cannot be had is None, never 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from benchmarks.stream import RequestRecord


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Mean, median, 99th percentile and maximum of a sample, in milliseconds; all None for an empty one."""

    mean: float | None
    p50: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, sample: Sequence[float]) -> Distribution:
        return cls(
            mean=statistics.fmean(sample) if sample else None,
            p50=percentile(sample, 0.50),
            p99=percentile(sample, 0.99),
            max=max(sample, default=None),
        )


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What one repeat of a workload measured.

    TTFT: sent to first chunk. ITL: between two chunks of a request. TPOT: first to last chunk over the tokens after the
    first, one value per request. E2E: sent to last chunk.
    """

    requests: int
    errors: int
    first_error: str | None
    wall_seconds: float
    input_tokens: int | None
    output_tokens: int
    cached_tokens: int
    chunks: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float | None
    ttft_ms: Distribution
    itl_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def percentile(sample: Sequence[float], fraction: float) -> float | None:
    """The value below which ``fraction`` of the sample lies, linear between neighbours; None for an empty sample."""
    if not sample:
        return None
    ordered = sorted(sample)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(records: Sequence[RequestRecord], wall_seconds: float) -> Summary:
    """Reduce the records of one repeat, which took ``wall_seconds`` from the first request sent to the last byte."""
    good = [record for record in records if record.error is None]
    errors = [record.error for record in records if record.error is not None]
    output_tokens = sum(record.output_tokens for record in good)
    known_inputs = [record.prompt_tokens for record in good if record.prompt_tokens is not None]
    input_tokens = sum(known_inputs) if len(known_inputs) == len(good) else None
    return Summary(
        requests=len(records),
        errors=len(errors),
        first_error=errors[0] if errors else None,
        wall_seconds=wall_seconds,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(record.cached_tokens for record in good),
        chunks=sum(len(record.chunk_times) for record in good),
        requests_per_second=len(good) / wall_seconds,
        output_tokens_per_second=output_tokens / wall_seconds,
        total_tokens_per_second=None if input_tokens is None else (input_tokens + output_tokens) / wall_seconds,
        ttft_ms=Distribution.of([_ms(record.chunk_times[0] - record.sent) for record in good]),
        itl_ms=Distribution.of([_ms(b - a) for record in good for a, b in pairwise(record.chunk_times)]),
        tpot_ms=Distribution.of([_tpot(record) for record in good if record.output_tokens > 1]),
        e2e_ms=Distribution.of([_ms(record.chunk_times[-1] - record.sent) for record in good]),
    )


def _ms(seconds: float) -> float:
    return seconds * 1000


def _tpot(record: RequestRecord) -> float:
    return _ms(record.chunk_times[-1] - record.chunk_times[0]) / (record.output_tokens - 1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: the medians of the repeats of one workload against one server. Times in milliseconds."""

    label: str
    load: str
    repeats: int
    errors: int
    input: float | None
    cached: float | None
    output: float | None
    out_per_s: float | None
    total_per_s: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None
    tpot_p50: float | None
    tpot_p99: float | None
    other_cpu: float | None


def medians(results: Iterable[dict[str, Any]]) -> list[Row]:
    """One row per label and workload, in the order of workloads, then of first appearance.

    ``results`` are the dictionaries that a result file holds, one per repeat; errors are added up, not averaged.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["workload"]["name"], result["label"]), []).append(result)

    def median(group: list[dict[str, Any]], *path: str) -> float | None:
        values = [value for result in group if (value := _look_up(result, path)) is not None]
        return statistics.median(values) if values else None

    rows = [
        Row(
            label=label,
            load=load,
            repeats=len(group),
            errors=sum(result["summary"]["errors"] for result in group),
            input=median(group, "summary", "input_tokens"),
            cached=median(group, "summary", "cached_tokens"),
            output=median(group, "summary", "output_tokens"),
            out_per_s=median(group, "summary", "output_tokens_per_second"),
            total_per_s=median(group, "summary", "total_tokens_per_second"),
            ttft_p50=median(group, "summary", "ttft_ms", "p50"),
            ttft_p99=median(group, "summary", "ttft_ms", "p99"),
            itl_p50=median(group, "summary", "itl_ms", "p50"),
            itl_p99=median(group, "summary", "itl_ms", "p99"),
            tpot_p50=median(group, "summary", "tpot_ms", "p50"),
            tpot_p99=median(group, "summary", "tpot_ms", "p99"),
            other_cpu=median(group, "other_cpu_share"),
        )
        for (load, label), group in groups.items()
    ]
    order = {load: index for index, load in enumerate(sorted({row.load for row in rows}))}
    return sorted(rows, key=lambda row: order[row.load])


def _look_up(result: dict[str, Any], path: Sequence[str]) -> Any:
    value: Any = result
    for key in path:
        value = value[key]
    return value


def format_table(rows: Sequence[Row]) -> str:
    """A Markdown table, aligned for a terminal too."""
    names = [field.name for field in fields(Row)]
    cells = [[_cell(name, getattr(row, name)) for name in names] for row in rows]
    titles = [name.replace("_per_s", " tok/s").replace("_", " ") for name in names]
    widths = [max(len(line[column]) for line in [titles, *cells]) for column in range(len(names))]

    def line(values: Sequence[str]) -> str:
        padded = (
            value.ljust(width) if column < 2 else value.rjust(width)
            for column, (value, width) in enumerate(zip(values, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 1) + ("-" if column < 2 else ":") for column, width in enumerate(widths)) + "|"
    return "\n".join([line(titles), rule, *map(line, cells)])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "other_cpu":
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
