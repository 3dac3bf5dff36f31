"""Dashboard: rows of panels, laid out on Grafana's grid of 24 columns.

Invariants: panels of a row fill lines from the left, no two overlap, and a place depends on nothing but what comes
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from server.monitoring.panel import Panel

GRID_COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A rectangle of the grid, in cells."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One board. ``uid`` is what links go to, and never changes; ``question`` is what it answers."""

    uid: str
    title: str
    question: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)

    def layout(self) -> Iterator[tuple[Row | Panel, Place]]:
        """Headings and panels from top to bottom, each with its place."""
        y = 0
        for row in self.rows:
            yield row, Place(0, y, GRID_COLUMNS, 1)
            y += 1
            x = line_height = 0
            for panel in row.panels:
                if x + panel.width > GRID_COLUMNS:
                    x, y, line_height = 0, y + line_height, 0
                yield panel, Place(x, y, panel.width, panel.height)
                x += panel.width
                line_height = max(line_height, panel.height)
            y += line_height
