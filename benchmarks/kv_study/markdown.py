"""Markdown and figures as the document writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """All columns but the first ``text_columns`` are numbers, set to the right."""
    lines = [
        f"| {' | '.join(heads)} |",
        "|" + "---|" * text_columns + "---:|" * (len(heads) - text_columns),
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def time(seconds: float) -> str:
    """With the unit that suits it and three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def size(count: float) -> str:
    """Bytes, with the unit that suits them."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{_three_digits(count / one)} {unit}"
    return f"{count:,.0f} B"


def ratio(value: float) -> str:
    return f"{_three_digits(value)}x"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
