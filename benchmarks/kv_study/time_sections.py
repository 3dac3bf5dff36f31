"""Sections (a) and (b): time with and without a cache, and along a long text."""

from __future__ import annotations

from benchmarks.kv_study.fit import Line
from benchmarks.kv_study.growth import FIRST, Growth, Slopes
from benchmarks.kv_study.markdown import ratio, table, time
from benchmarks.kv_study.section import Section
from benchmarks.kv_study.study import Study


def growth_section(study: Study) -> Section:
    growth = Growth.of(study.timing)
    longest = growth.lengths[-1]
    saved = growth.total_without[-1] / growth.total_with[-1]
    without, kept = (growth.exponent(one, late=True) for one in (growth.total_without, growth.total_with))
    rows = [
        [
            f"{length:,}",
            time(one),
            time(other),
            ratio(one / other),
            time(all_one),
            time(all_other),
            ratio(all_one / all_other),
        ]
        for length, one, other, all_one, all_other in zip(
            growth.lengths,
            growth.token_without,
            growth.token_with,
            growth.total_without,
            growth.total_with,
            strict=True,
        )
        if not length & (length - 1)
    ]
    heads = ["tokens", "next token, without", "with", "ratio", "whole text, without", "with", "ratio"]
    exponents = table(
        ["exponent of length, ± 95 % of the fit", f"{FIRST:,} to {longest:,}", f"{growth.late_from:,} to {longest:,}"],
        [
            [name, str(growth.exponent(seconds)), str(growth.exponent(seconds, late=True))]
            for name, seconds in (
                ("whole text, without a cache", growth.total_without),
                ("whole text, with a cache", growth.total_with),
                ("next token, without a cache", growth.token_without),
                ("next token, with a cache", growth.token_with),
            )
        ],
    )
    return Section(
        title="(a) Time: quadratic against linear",
        question="What does it cost to compute what was computed already?",
        answer=f"a text of {longest:,} tokens takes {time(growth.total_without[-1])} without a cache and "
        f"{time(growth.total_with[-1])} with one, {ratio(saved)}; it grows with length^{without.exponent:.2f} and "
        f"length^{kept.exponent:.2f}",
        method="*With*: one request draws its tokens one after the other, and every step of the engine is timed, "
        "from its plan to its token. *Without*: for the next token the same engine computes the whole text so far "
        f"again, in one step, and finds nothing cached. That was done at {len(study.timing.recompute)} lengths, "
        f"{study.setting.sizes.recompute_repeats} times each, and the median taken; the sum over all lengths lies on "
        "straight lines between them, so totals without a cache are interpolated, and those with one measured.",
        plot="time",
        alt="Two log-log plots of seconds against length. Without a cache the lines are steeper than with one.",
        table=f"{table(heads, rows, text_columns=0)}\n\n{exponents}",
        meaning=f"Computing anew, a whole text grows with length^{without.exponent:.2f} once it is longer than "
        f"{growth.late_from:,} tokens: each token pays for all before it. With a cache it is "
        f"length^{kept.exponent:.2f}: each token pays for itself. At {longest:,} tokens the next token comes "
        f"{ratio(growth.token_without[-1] / growth.token_with[-1])} as fast, and the whole text {ratio(saved)}. "
        + _attention(study),
        limits="One stream. Short texts cost the time in which weights are read, with or without a cache, so that "
        "the exponents over all lengths are lower than over the longer ones. Sums make smooth curves: their margins "
        "say how straight a curve is, not how sure its slope.",
    )


def _attention(study: Study) -> str:
    """Where the linear term of attention shows."""
    generation = study.timing.generations[0]
    slope = Slopes.of(generation).full
    if slope is None or slope.slope <= slope.margin:
        return "Attention's own linear term does not show above the noise at these lengths."
    end = len(generation.seconds)
    share = slope.slope * end / slope.at(end)
    tenth = 0.1 * slope.intercept / slope.slope
    return (
        "What is left to grow is attention, which reads the cache: it is linear in length, and makes a tenth of a step "
        f"at about {tenth:,.0f} tokens (here, at {end:,}, {share:.1%})."
    )


def latency_section(study: Study) -> Section:
    generations = study.timing.generations
    own = generations[0]
    first, last = own.quarter(0), own.quarter(3)
    rows = []
    for one in generations:
        slopes = Slopes.of(one)
        rows.append(
            [
                one.name,
                time(one.quarter(0)),
                time(one.quarter(3)),
                ratio(one.quarter(3) / one.quarter(0)),
                time(one.slowest()),
                _per_thousand(slopes.filling),
                _per_thousand(slopes.full),
            ]
        )
    heads = ["layers", "first quarter", "last quarter", "ratio", "99 of 100 below", "while windows fill", "after that"]
    return Section(
        title="(b) Latency along a long text",
        question="Does a stream stay smooth, or does each token wait longer than the one before?",
        answer=f"the median of the last quarter of {len(own.seconds):,} tokens is {ratio(last / first)} that of the "
        f"first ({time(first)}, {time(last)})",
        method=f"The generation of (a), token by token. {_second_arm(study)}Slopes are least squares over medians of "
        "64 tokens, per 1,000 tokens of length, with 95 % confidence.",
        plot="latency",
        alt="Milliseconds of each token against the length of the text so far; the line of the model stays nearly "
        "flat.",
        table=table(heads, rows),
        meaning=f"From the first to the last quarter the time of a token changes by {last / first - 1:+.1%}. "
        f"{_windows(study)}",
        limits="Greedy tokens of one stream, alone in the engine; a server's other streams, and its HTTP, come on top. "
        "Medians hide single slow steps.",
    )


def _second_arm(study: Study) -> str:
    if len(study.timing.generations) == 1:
        return ""
    return "A second engine has the same weights, with every layer made to see the whole text: what windows save. "


def _windows(study: Study) -> str:
    if len(study.timing.generations) == 1:
        return "Every layer of this model sees the whole text, so that attention grows with it."
    own, everything = (Slopes.of(one).full for one in study.timing.generations)
    windows = study.setting.windows
    found = (
        f"{len(windows) - windows.count(None)} of {len(windows)} layers see no more than "
        f"{max(window for window in windows if window is not None):,} tokens, and take no longer once these are full"
    )
    if own is None or everything is None or own.slope <= own.margin:
        return f"{found}."
    return (
        f"{found}. Past that, 1,000 tokens more cost {_per_thousand(own)} a token; were all layers to see everything, "
        f"{_per_thousand(everything)}, {ratio(everything.slope / own.slope)} as much."
    )


def _per_thousand(line: Line | None) -> str:
    if line is None:
        return "-"
    return f"{line.slope * 1e6:+.2f} ± {line.margin * 1e6:.2f} ms"
