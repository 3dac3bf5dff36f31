"""Panel: one picture on a board, its queries, and in words why somebody would look at it.

It knows Grafana's visualisations by name and nothing of JSON. Invariants: a panel has a query, a unit and a reason, and
its description begins with what the catalogue says of its first metric.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.metrics.metric_spec import MetricSpec
from server.monitoring import palette
from server.monitoring.promql import Scope

QUANTILES = (0.5, 0.9, 0.99)


class Unit(enum.StrEnum):
    """Grafana's name of a unit."""

    COUNT = "short"
    SHARE = "percentunit"
    BYTES = "bytes"
    SECONDS = "s"
    PER_SECOND = "suffix:/s"
    TOKENS = "suffix: tokens"
    TOKENS_PER_SECOND = "suffix: tok/s"
    REQUESTS_PER_SECOND = "reqps"
    PAGES = "suffix: pages"
    CORES = "suffix: cores"


class Kind(enum.StrEnum):
    """Grafana's name of a visualisation."""

    GRAPH = "timeseries"
    NUMBER = "stat"
    HEATMAP = "heatmap"
    TABLE = "table"


class Stacking(enum.StrEnum):
    NONE = "none"
    NORMAL = "normal"
    SHARES = "percent"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the legend of the series it returns, where ``{{label}}`` stands for a label's value."""

    promql: str
    legend: str


@dataclass(frozen=True, slots=True)
class Threshold:
    """From ``value`` on, the colour is ``color``."""

    value: float
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """``why`` is the reason to look at it; ``colors`` are by legend, where a legend like ``/^held/`` is a pattern for
    shades of one colour, and ``base`` is the colour below all thresholds.

    ``width`` and ``height`` are in cells of the grid, which is 24 wide. ``sparkline``: a number shows its past, too.
    """

    title: str
    unit: Unit
    about: MetricSpec
    why: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.GRAPH
    width: int = 8
    height: int = 8
    stacking: Stacking = Stacking.NONE
    colors: Mapping[str, str] = field(default_factory=dict)
    base: str = "green"
    thresholds: tuple[Threshold, ...] = ()
    minimum: float | None = 0.0
    maximum: float | None = None
    words: Mapping[str, str] = field(default_factory=dict)  # what is shown instead of a value
    sparkline: bool = True

    def __post_init__(self) -> None:
        if not self.queries or not self.why.endswith("."):
            raise ValueError(f"the panel {self.title!r} needs a query, and a reason that is a sentence")

    @property
    def description(self) -> str:
        return f"{self.about.help} {self.why}"


def number(
    title: str,
    unit: Unit,
    about: MetricSpec,
    why: str,
    promql: str,
    *,
    base: str = "green",
    thresholds: tuple[Threshold, ...] = (),
    words: Mapping[str, str] | None = None,
    sparkline: bool = True,
) -> Panel:
    """One number as it is now; eight of them fill the width."""
    return Panel(
        title=title,
        kind=Kind.NUMBER,
        unit=unit,
        about=about,
        why=why,
        queries=(Query(promql, title),),
        width=3,
        height=4,
        base=base,
        thresholds=thresholds,
        words=words or {},
        sparkline=sparkline,
    )


def quantiles(title: str, unit: Unit, spec: MetricSpec, why: str, scope: Scope, width: int = 12) -> Panel:
    """How the median, the slow tenth and the slow hundredth of a histogram move."""
    return Panel(
        title=title,
        kind=Kind.GRAPH,
        unit=unit,
        about=spec,
        why=why,
        queries=tuple(Query(scope.quantile(quantile, spec), f"p{quantile * 100:g}") for quantile in QUANTILES),
        width=width,
        colors=palette.QUANTILES,
    )


def heatmap(title: str, unit: Unit, spec: MetricSpec, why: str, scope: Scope, width: int = 12) -> Panel:
    """How all observations of a histogram lie, by bucket and over time."""
    return Panel(
        title=title,
        kind=Kind.HEATMAP,
        unit=unit,
        about=spec,
        why=why,
        queries=(Query(scope.bucket_counts(spec), "{{le}}"),),
        width=width,
    )
