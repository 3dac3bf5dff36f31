"""How all plots look: one size, a white ground for dark pages, colours that colour-blind readers tell apart.

The palette is Okabe and Ito's (2008). Text is drawn as outlines, so that it looks the same wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK, GREY = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#6b6b6b"),
)
WIDTH, HEIGHT = 10.0, 4.2
SETTINGS: Any = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.labelsize": 10,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "octavo",
}


class PlotsMissing(Exception):
    """There is nothing to draw with; the message says what to install."""


def require_matplotlib() -> None:
    """Raise PlotsMissing before a long run rather than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotsMissing("the plots need matplotlib: pip install 'octavo[study]'") from None


@contextmanager
def style() -> Iterator[None]:
    """Figures that are made and saved in here look alike."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def panels(count: int, *, height: float = HEIGHT, widths: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` plots side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, width_ratios=widths)
    return figure, list(axes[0])


def label_end(axes: Axes, x: float, y: float, text: str, color: str, *, offset: tuple[float, float] = (5, 0)) -> None:
    """A line's name beside its end, in its colour."""
    axes.annotate(
        text,
        (x, y),
        xytext=offset,
        textcoords="offset points",
        color=color,
        va="center",
        ha="left" if offset[0] >= 0 else "right",
        fontsize=9.5,
        annotation_clip=False,
    )


def token_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic axis of lengths that says them in full."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:,.0f}" for tick in ticks]))


def powers_of_two(first: float, last: float, *, every: int = 1) -> list[float]:
    """Those from ``first`` to ``last``, or each ``every``-th of them."""
    power, found = 1, []
    while power <= last:
        if power >= first:
            found.append(float(power))
        power *= 2
    return found[::every]
