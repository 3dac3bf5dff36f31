"""Least squares: a straight line, and a power law as a line in logarithms, each with what 95 % confidence leaves open.

The intervals take errors to be independent. Sums that grow along a curve are not, so theirs say how straight the curve
is rather than how sure its slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t at 97.5 %, for 1 to 30 degrees of freedom
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Line:
    """``y = intercept + slope * x``; the slope is within ``margin`` of it with 95 % confidence."""

    slope: float
    intercept: float
    margin: float

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """``y = factor * x ** exponent``; the exponent is within ``margin`` of it with 95 % confidence."""

    exponent: float
    factor: float
    margin: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ± {self.margin:.2f}"


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """ValueError with fewer than three points, or where all are at one place."""
    count = len(xs)
    if count < 3 or count != len(ys):
        raise ValueError(f"a line with a margin needs three points or more, not {count} and {len(ys)}")
    mean_x, mean_y = math.fsum(xs) / count, math.fsum(ys) / count
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    if not spread:
        raise ValueError(f"all points are at {xs[0]}")
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    residual = math.fsum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(residual / (count - 2) / spread)
    return Line(slope, intercept, _student(count - 2) * error)


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """ValueError as `fit_line`, and for values that are not positive."""
    if min(*xs, *ys) <= 0:
        raise ValueError("a power law goes through positive values only")
    line = fit_line([math.log(x) for x in xs], [math.log(y) for y in ys])
    return PowerLaw(line.slope, math.exp(line.intercept), line.margin)


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """On straight lines between points whose ``xs`` ascend; ValueError outside of them."""
    if not xs[0] <= x <= xs[-1]:
        raise ValueError(f"{x} is not between {xs[0]} and {xs[-1]}")
    right = next(index for index, one in enumerate(xs) if one >= x)
    if xs[right] == x:
        return ys[right]
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


def _student(freedom: int) -> float:
    return _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.5 / freedom
