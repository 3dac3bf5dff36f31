"""The plots of the study, one figure for each question. They show; what follows from them is in the document."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.kv_study.growth import Growth
from benchmarks.kv_study.plot_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    label_end,
    panels,
    powers_of_two,
    style,
    token_ticks,
)
from benchmarks.kv_study.quality import Score
from benchmarks.kv_study.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMIT_COLORS = (RED, ORANGE, GREEN, SKY, PURPLE)


def draw_plots(study: Study) -> dict[str, bytes]:
    """The SVG file of each plot, by name."""
    with style():
        return {f"kv-study-{name}.svg": _svg(draw(study)) for name, draw in FIGURES.items()}


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def time_figure(study: Study) -> Figure:
    """(a): seconds a token and in all, without and with a cache."""
    growth = Growth.of(study.timing)
    figure, (each, total) = panels(2)
    ticks = powers_of_two(64, growth.lengths[-1])
    for axes, without, kept in (
        (each, growth.token_without, growth.token_with),
        (total, growth.total_without, growth.total_with),
    ):
        axes.set_yscale("log")
        token_ticks(axes, ticks)
        axes.set_xlabel("length of the text, tokens")
        for seconds, color, name in ((without, RED, "without a cache"), (kept, BLUE, "with a cache")):
            axes.plot(growth.lengths, seconds, color=color, marker="o", markersize=3.5)
            law = growth.exponent(seconds, late=True)
            at = len(seconds) - 3
            axes.annotate(
                f"{name}\n$\\propto$ length$^{{{law.exponent:.2f}}}$",
                (growth.lengths[at], seconds[at]),
                xytext=(-8, 2) if color == RED else (0, 12),
                textcoords="offset points",
                ha="right" if color == RED else "center",
                va="bottom",
                color=color,
            )
        axes.margins(y=0.14)
    each.set_title("For one more token")
    each.set_ylabel("seconds a token")
    total.set_title("For the whole text")
    total.set_ylabel("seconds in all")
    return figure


def latency_figure(study: Study) -> Figure:
    """(b): every token of a long text."""
    figure, (axes,) = panels(1)
    most = 0.0
    for generation, color in zip(study.timing.generations, (BLUE, ORANGE), strict=False):
        lengths, seconds = generation.binned()
        milliseconds = [one * 1e3 for one in seconds]
        low, high = ([one * 1e3 for one in generation.binned(quantile=share)[1]] for share in (0.05, 0.95))
        axes.fill_between(lengths, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(lengths, milliseconds, color=color)
        label_end(axes, lengths[-1], milliseconds[-1], generation.name, color)
        most = max(most, *high)
    windows = [window for window in study.setting.windows if window is not None]
    if windows and max(windows) < len(study.timing.generations[0].seconds):
        axes.axvline(max(windows), color=GREY, linewidth=1, linestyle=":")
        axes.annotate(
            f"windows of {max(windows):,} are full",
            (max(windows), 0),
            xytext=(4, 4),
            textcoords="offset points",
            color=GREY,
        )
    axes.set_ylim(0, most * 1.1)
    axes.set_xlim(0, len(study.timing.generations[0].seconds))
    axes.set_title("Time of a token: medians of 64 (lines), and where 90 % of them lie (bands)")
    axes.set_xlabel("length of the text so far, tokens")
    axes.set_ylabel("milliseconds a token")
    return figure


def memory_figure(study: Study) -> Figure:
    """(c): bytes held by one sequence, and requests that share the same memory."""
    memory = study.memory
    figure, (held, mix) = panels(2, widths=(1.6, 1))
    lengths = [one.length for one in memory.uniform]
    at = range(0, len(lengths), max(1, len(lengths) // 512))
    short = [lengths[index] for index in at]
    lines = (
        ([memory.reserved() for _ in at], RED, "reserved whole", (-6.0, 8.0)),
        ([memory.doubling(length) for length in short], ORANGE, "grown by doubling", (-6.0, 8.0)),
        ([memory.uniform[index].held for index in at], SKY, "pages", (-14.0, 6.0)),
        ([memory.grouped[index].held for index in at], BLUE, "pages, windows given back", (-6.0, 9.0)),
    )
    for (sizes, color, name, offset), place in zip(lines, (0.45, 0.44, 0.78, 0.98), strict=True):
        held.plot(short, [one / 1e6 for one in sizes], color=color, drawstyle="steps-post")
        index = int(place * (len(short) - 1))
        label_end(held, short[index], sizes[index] / 1e6, name, color, offset=offset)
    held.set_ylim(0, memory.reserved() / 1e6 * 1.12)
    held.set_xlim(0, lengths[-1])
    held.set_title("One sequence")
    held.set_xlabel("length, tokens")
    held.set_ylabel("megabytes held")

    one = memory.mix
    names = ["reserved\nwhole", "grown by\ndoubling", "pages", "pages,\nwindows"]
    counts = [one.reserved, one.doubling, one.pages, one.windowed]
    wastes = [one.reserved_waste, one.doubling_waste, one.pages_waste, one.windowed_waste]
    bars = mix.bar(names, counts, color=[RED, ORANGE, SKY, BLUE], width=0.7)
    labels = [f"{count:,.0f}\n{waste:.1%} waste" for count, waste in zip(counts, wastes, strict=True)]
    mix.bar_label(bars, labels, fontsize=8.5, padding=2)
    mix.set_title(f"Requests at once in {one.memory / 1e9:.1f} GB")
    mix.set_ylabel("requests")
    mix.grid(axis="x", visible=False)
    mix.margins(y=0.2)
    return figure


def quality_figure(study: Study) -> Figure:
    """(d): perplexity and recall against what a cache keeps."""
    quality = study.quality
    if len(quality.limited) == 1:
        return _dtype_figure(study)
    figure, (text, near, far) = panels(3, widths=(1.15, 1, 1))
    whole = quality.limited[0]
    kept = sorted({score.arm.limit.kept for score in quality.limited if score.arm.limit.kept})
    token_ticks(text, [float(one) for one in kept])
    for has_sinks, color, marker in ((False, RED, "o"), (True, BLUE, "s")):
        scores = [one for one in quality.limited[1:] if bool(one.arm.limit.sinks) == has_sinks]
        sizes = [float(one.arm.limit.kept or 0) for one in scores]
        values = [one.perplexity for one in scores]
        name = f"first {scores[0].arm.limit.sinks} tokens and newest" if has_sinks else "newest tokens only"
        text.plot(sizes, values, color=color, marker=marker, label=name)
    text.axhline(whole.perplexity, color=BLACK, linestyle="--", linewidth=1.2)
    text.annotate(
        f"whole cache: {whole.perplexity:.1f}",
        (kept[-1], whole.perplexity),
        xytext=(0, -6),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    text.set_yscale("log")
    _plain_log_ticks(text)
    text.margins(y=0.15)
    text.legend(loc="upper right", fontsize=9)
    text.set_title("Perplexity of a text")
    text.set_xlabel("positions that full layers keep")
    text.set_ylabel("perplexity (log)")
    for axes, has_sinks, title in ((near, False, "Recall, newest only"), (far, True, "Recall, with first tokens")):
        scores = [one for one in quality.limited[1:] if bool(one.arm.limit.sinks) == has_sinks]
        _recall(axes, [*scores, whole], title)
        axes.axhline(quality.blind, color=GREY, linestyle=":", linewidth=1.2)
        axes.annotate(
            "never told", (0.02, quality.blind + 0.1), xycoords=("axes fraction", "data"), va="bottom", color=GREY
        )
        axes.set_ylim(min(-16.0, *(r.log_probability - 1 for one in quality.limited for r in one.recalls)), 1.5)
    near.set_ylabel("log probability of the right word, nats")
    lines, names = near.get_legend_handles_labels()
    figure.legend(lines, names, title="positions that full layers keep", loc="outside lower right", ncols=len(names))
    return figure


def _recall(axes: Axes, scores: list[Score], title: str) -> None:
    distances = [float(one.distance) for one in scores[0].recalls]
    token_ticks(axes, powers_of_two(distances[0], distances[-1]))
    for score, color in zip(scores, (*LIMIT_COLORS[: len(scores) - 1], BLACK), strict=False):
        values = [one.log_probability for one in score.recalls]
        name = "whole cache" if score.arm.limit.kept is None else f"{score.arm.limit.kept:,}"
        axes.plot(distances, values, color=color, marker="o", markersize=3, label=name)
    axes.set_title(title)
    axes.set_xlabel("tokens since the fact")


def _dtype_figure(study: Study) -> Figure:
    """For models where no layer sees everything: page dtypes alone."""
    figure, (axes,) = panels(1)
    scores = study.quality.dtypes
    axes.bar([one.arm.dtype for one in scores], [one.perplexity for one in scores], color=BLUE, width=0.6)
    axes.set_title("Perplexity by dtype of the pages")
    axes.set_ylabel("perplexity")
    return figure


def _plain_log_ticks(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def upkeep_figure(study: Study) -> Figure:
    """(e): what a token's place costs, at any length."""
    figure, (axes,) = panels(1)
    lengths = [one.length for one in study.upkeep]
    for name, color, values in (
        ("write K and V, one layer", PURPLE, [one.store for one in study.upkeep]),
        ("append to the tables", BLUE, [one.append for one in study.upkeep]),
        ("hash, a token's share", ORANGE, [one.hashing for one in study.upkeep]),
        ("find a position", GREEN, [one.lookup for one in study.upkeep]),
    ):
        microseconds = [one * 1e6 for one in values]
        axes.plot(lengths, microseconds, color=color, marker="o", markersize=4)
        label_end(axes, lengths[-1], microseconds[-1], name, color)
    axes.set_yscale("log")
    token_ticks(axes, [float(length) for length in lengths])
    axes.set_xlim(lengths[0] * 0.8, lengths[-1] * 1.2)
    axes.set_title("Cost of one token's place in the cache")
    axes.set_xlabel("length of the sequence, tokens")
    axes.set_ylabel("microseconds (log)")
    return figure


def leftovers_figure(study: Study) -> Figure:
    """(f): pages and memory of the process, request after request."""
    left = study.leftovers
    figure, (pages, rss) = panels(2)
    counts = [one.finished for one in left.moments]
    free, cached, held = ([getattr(one, name) for one in left.moments] for name in ("free", "cached", "held"))
    pages.stackplot(counts, held, cached, free, colors=[RED, SKY, "#e8e8e8"], labels=["held", "cached", "free"])
    pages.set_xlim(counts[0], counts[-1])
    pages.set_ylim(0, left.total)
    pages.legend(loc="upper right", frameon=True, framealpha=0.9, ncols=3, reverse=True)
    pages.set_title(f"{left.total:,} pages, at the end of each request")
    pages.set_xlabel("requests finished")
    pages.set_ylabel("pages")
    pages.grid(visible=False)
    sizes = [(one.rss_bytes or 0) / 1e6 for one in left.moments]
    rss.plot(counts, sizes, color=BLUE)
    rss.set_xlim(counts[0], counts[-1])
    rss.set_ylim(0, max(sizes, default=0) * 1.2 or 1)
    rss.set_title("Memory of the process")
    rss.set_xlabel("requests finished")
    rss.set_ylabel("megabytes resident")
    return figure


FIGURES: Mapping[str, Callable[[Study], Figure]] = {
    "time": time_figure,
    "latency": latency_figure,
    "memory": memory_figure,
    "quality": quality_figure,
    "upkeep": upkeep_figure,
    "leftovers": leftovers_figure,
}
