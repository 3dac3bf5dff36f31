"""How times grow with length: exponents, slopes and ratios that plots, tables and sentences share."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.kv_study.fit import Line, PowerLaw, fit_power_law
from benchmarks.kv_study.timing import Generation, Timing

FIRST = 64
"""Tokens from which on exponents are fitted: shorter texts are all start-up."""


@dataclass(frozen=True, slots=True)
class Growth:
    """``lengths`` are those that are fitted and shown. ``late``: from their middle on, where start-up has worn off."""

    lengths: tuple[int, ...]
    token_without: tuple[float, ...]
    token_with: tuple[float, ...]
    total_without: tuple[float, ...]
    total_with: tuple[float, ...]

    @classmethod
    def of(cls, timing: Timing) -> Growth:
        lengths = tuple(length for length in _grid(timing.longest))
        without, kept = timing.totals()
        near = {length: _near(timing.generations[0], length) for length in lengths}
        return cls(
            lengths,
            tuple(timing.recompute_seconds(length) for length in lengths),
            tuple(near[length] for length in lengths),
            tuple(without[length - 1] for length in lengths),
            tuple(kept[length - 1] for length in lengths),
        )

    def exponent(self, seconds: tuple[float, ...], *, late: bool = False) -> PowerLaw:
        start = len(self.lengths) // 2 if late else 0
        return fit_power_law(self.lengths[start:], seconds[start:])

    @property
    def late_from(self) -> int:
        return self.lengths[len(self.lengths) // 2]


@dataclass(frozen=True, slots=True)
class Slopes:
    """What attention adds to a step, in seconds a token of length: while windows fill, and when they are full."""

    filling: Line | None
    full: Line | None

    @classmethod
    def of(cls, generation: Generation) -> Slopes:
        window = max((window for window in generation.windows if window is not None), default=0)
        end = len(generation.seconds)
        return cls(generation.slope(0, window) if window else None, generation.slope(min(window, end), end))


def _grid(longest: int) -> list[int]:
    """Powers of two and what lies half way between them, from `FIRST` to ``longest``."""
    lengths, power = [], FIRST
    while power <= longest:
        lengths += [length for length in (power, power * 3 // 2) if length <= longest]
        power *= 2
    return lengths


def _near(generation: Generation, length: int) -> float:
    """Median seconds of a few steps that end at ``length``."""
    steps = sorted(generation.seconds[max(0, length - 32) : length])
    return steps[len(steps) // 2]
