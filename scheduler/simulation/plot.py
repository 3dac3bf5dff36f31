"""Plot: pages, requests and preemptions over time, one line for each run; needs matplotlib (``octavo[simulate]``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scheduler.simulation.timeline import Timeline


class PlotError(Exception):
    """No plot can be made; the message says why and what to do."""


def check_plot(path: Path) -> None:
    """PlotError unless a plot could be written to ``path``: before a long run, rather than after it."""
    if path.suffix not in (".png", ".svg"):
        raise PlotError(f"--plot {path}: the name must end in .png or .svg")
    if not path.resolve().parent.is_dir():
        raise PlotError(f"--plot {path}: there is no folder {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotError("--plot needs matplotlib: pip install 'octavo[simulate]'") from None


def write_plot(path: Path, timelines: Mapping[int, Timeline]) -> None:
    """Draw the ``timelines``, by number of pages, into the PNG or SVG file ``path``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 9), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True)
    for num_pages, timeline in timelines.items():
        label = f"{num_pages:,} pages"
        seconds = [moment.seconds for moment in timeline.moments]
        panels[0].plot(seconds, [moment.held_pages for moment in timeline.moments], label=label)
        panels[1].plot(seconds, [moment.num_running for moment in timeline.moments], label=label)
        panels[2].plot(seconds, [moment.num_waiting for moment in timeline.moments], label=label)
        panels[3].plot(seconds, [moment.num_preemptions for moment in timeline.moments], label=label)
    for panel, title in zip(panels, ("pages held", "running", "waiting", "preemptions so far"), strict=True):
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].legend(loc="upper left")
    panels[-1].set_xlabel("simulated seconds")
    figure.savefig(path)
