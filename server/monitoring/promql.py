"""PromQL made from metric specs: a name, label, value or bucket that the catalogue does not have is a Python error.

It writes text and knows nothing of panels or rules. Invariants: a counter is only ever rated, a gauge never; a sum
says which labels are left.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from server.metrics.metric_spec import MetricKind, MetricSpec

TARGET_LABELS = ("cluster", "namespace", "job")  # of one service, as Prometheus adds them; absent ones do not matter


class Level(enum.Enum):
    """Over what series are added up."""

    SELECTION = "selection"  # everything selected on a board: nothing is left but the labels asked for
    INSTANCE = "instance"  # one server: every label that Prometheus gave the target is kept
    SERVICE = "service"  # all servers of one job


@dataclass(frozen=True, slots=True)
class Scope:
    """What a query is about: ``matchers`` select the targets, ``window`` is what rates are taken over."""

    level: Level
    window: str
    matchers: str = ""

    def over(self, window: str) -> Scope:
        """The same targets, with rates over another window."""
        return Scope(self.level, window, self.matchers)

    # ---- as they are exported

    def gauge(self, spec: MetricSpec, **labels: str) -> str:
        """The selector of a gauge or an info."""
        if spec.kind not in (MetricKind.GAUGE, MetricKind.INFO):
            raise ValueError(f"{spec.name} is a {spec.kind}, not a gauge")
        return spec.name + self._selector(spec, labels)

    def rate(self, spec: MetricSpec, **labels: str) -> str:
        """A counter's growth per second."""
        return f"rate({self._counter(spec, labels)}[{self.window}])"

    def increase(self, spec: MetricSpec, **labels: str) -> str:
        """A counter's growth in the window."""
        return f"increase({self._counter(spec, labels)}[{self.window}])"

    # ---- added up

    def total(self, spec: MetricSpec, *left: str, **labels: str) -> str:
        """A gauge, summed; the labels ``left`` stay apart."""
        return self.aggregate("sum", spec, self.gauge(spec, **labels), left)

    def highest(self, spec: MetricSpec, *left: str, **labels: str) -> str:
        """A gauge, the largest of all."""
        return self.aggregate("max", spec, self.gauge(spec, **labels), left)

    def lowest(self, spec: MetricSpec, *left: str, **labels: str) -> str:
        """A gauge, the smallest of all."""
        return self.aggregate("min", spec, self.gauge(spec, **labels), left)

    def total_rate(self, spec: MetricSpec, *left: str, **labels: str) -> str:
        """A counter's growth per second, summed."""
        return self.aggregate("sum", spec, self.rate(spec, **labels), left)

    def total_increase(self, spec: MetricSpec, *left: str, **labels: str) -> str:
        """A counter's growth in the window, summed."""
        return self.aggregate("sum", spec, self.increase(spec, **labels), left)

    # ---- histograms

    def quantile(self, quantile: float, spec: MetricSpec) -> str:
        """What a share ``quantile`` of the observations of the window was at most."""
        return f"histogram_quantile({quantile:g}, {self._added('sum', ('le',), ('le',), self._buckets('rate', spec))})"

    def bucket_counts(self, spec: MetricSpec) -> str:
        """Observations of the window by bucket, as a heatmap wants them."""
        return self._added("sum", ("le",), ("le",), self._buckets("increase", spec))

    def mean(self, spec: MetricSpec) -> str:
        """The mean of the observations of the window."""
        _, sum_name, count_name = _histogram(spec)
        return ratio(*(self._added("sum", (), (), self._rate_of(name)) for name in (sum_name, count_name)))

    def count_rate(self, spec: MetricSpec) -> str:
        """Observations per second."""
        return self._added("sum", (), (), self._rate_of(_histogram(spec)[2]))

    def share_above(self, spec: MetricSpec, bound: float) -> str:
        """The share of the observations of the window that were above ``bound``, which must be that of a bucket."""
        bucket, _, count = _histogram(spec)
        if bound not in spec.buckets:
            raise ValueError(f"{spec.name} has no bucket that ends at {bound:g}")
        within = self._added("sum", ("le",), (), self._rate_of(bucket, f'le="{float(bound)}"'))
        return f"1 - {ratio(within, self._added('sum', (), (), self._rate_of(count)))}"

    # ---- parts

    def aggregate(self, operator: str, spec: MetricSpec, expression: str, left: Sequence[str]) -> str:
        """``operator`` over the labels of ``spec`` that are not ``left``."""
        _check_labels(spec, left)
        return self._added(operator, spec.labels, left, expression)

    def _added(self, operator: str, own: Sequence[str], left: Sequence[str], expression: str) -> str:
        match self.level:
            case Level.SELECTION:
                return f"{operator} by ({', '.join(left)}) ({expression})" if left else f"{operator}({expression})"
            case Level.INSTANCE:
                dropped = [label for label in own if label not in left]
                return f"{operator} without ({', '.join(dropped)}) ({expression})" if dropped else expression
            case Level.SERVICE:
                return f"{operator} by ({', '.join((*TARGET_LABELS, *left))}) ({expression})"

    def _counter(self, spec: MetricSpec, labels: dict[str, str]) -> str:
        if spec.kind is not MetricKind.COUNTER:
            raise ValueError(f"{spec.name} is a {spec.kind}, not a counter")
        return spec.series[0] + self._selector(spec, labels)

    def _buckets(self, function: str, spec: MetricSpec) -> str:
        return f"{function}({_histogram(spec)[0]}{braces(self.matchers)}[{self.window}])"

    def _rate_of(self, series: str, matcher: str = "") -> str:
        return f"rate({series}{braces(self.matchers, matcher)}[{self.window}])"

    def _selector(self, spec: MetricSpec, labels: dict[str, str]) -> str:
        _check_labels(spec, tuple(labels))
        for label, value in labels.items():
            _check_value(spec, label, value)
        return braces(self.matchers, *(f'{name}{_operator(value)}"{value}"' for name, value in labels.items()))


def braces(*matchers: str) -> str:
    """The part of a selector in braces, or nothing."""
    given = [matcher for matcher in matchers if matcher]
    return f"{{{', '.join(given)}}}" if given else ""


def ratio(part: str, whole: str) -> str:
    """``part`` of ``whole``: NaN, which is drawn as a gap and raises no alert, where there is nothing of either."""
    return f"{_operand(part)} / {_operand(whole)}"


def add(*terms: str) -> str:
    return " + ".join(_operand(term) for term in terms)


def minus(term: str, *others: str) -> str:
    return " - ".join(_operand(one) for one in (term, *others))


def _operand(expression: str) -> str:
    """In parentheses where it is made of several terms."""
    depth = 0
    for position, character in enumerate(expression):
        depth += (character in "({[") - (character in ")}]")
        if depth == 0 and expression[position : position + 3] in (" + ", " - ", " / ", " * "):
            return f"({expression})"
    return expression


def _operator(value: str) -> str:
    return "=~" if set(value) & set("|.*+") else "="


def _check_labels(spec: MetricSpec, labels: Sequence[str]) -> None:
    if unknown := [label for label in labels if label not in spec.labels]:
        raise ValueError(f"{spec.name} has no label {unknown[0]}; it has: {', '.join(spec.labels) or 'none'}")


def _check_value(spec: MetricSpec, label: str, pattern: str) -> None:
    known = spec.label_values[spec.labels.index(label)]
    if known and not any(re.fullmatch(pattern, value) for value in known):
        raise ValueError(f"{spec.name} has no {label} {pattern}; it has: {', '.join(known)}")


def _histogram(spec: MetricSpec) -> tuple[str, str, str]:
    if spec.kind is not MetricKind.HISTOGRAM:
        raise ValueError(f"{spec.name} is a {spec.kind}, not a histogram")
    bucket, total, count = spec.series
    return bucket, total, count
