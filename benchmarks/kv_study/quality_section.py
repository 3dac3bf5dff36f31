"""Section (d): what a smaller cache costs in quality."""

from __future__ import annotations

from statistics import fmean

from benchmarks.kv_study.markdown import size, table
from benchmarks.kv_study.quality import QUESTION_TOKENS, SECRETS, Quality, Recall, Score
from benchmarks.kv_study.section import Section
from benchmarks.kv_study.study import Study


def quality_section(study: Study) -> Section:
    quality = study.quality
    whole, smallest = quality.limited[0], quality.dtypes[-1]
    heads = ["full layers keep", "bytes", "perplexity", "nats a token", *_distances(whole)]
    limited = table(heads, [[_kept(one), *_cells(one, whole)] for one in quality.limited], text_columns=1)
    heads[0] = "pages"
    dtypes = table(heads, [[one.arm.dtype, *_cells(one, whole)] for one in quality.dtypes], text_columns=1)
    loss, error = smallest.beyond(whole)
    return Section(
        title="(d) Cache size against quality",
        question="What is lost when less is kept: fewer positions, or fewer bits of each?",
        answer=f"{_windows_in_short(quality)}; {smallest.arm.dtype} pages take "
        f"{smallest.arm.cache_bytes / whole.arm.cache_bytes:.0%} of the bytes of float32 for {loss:+.4f} ± {error:.4f} "
        "nats a token",
        method=_method(study),
        plot="quality",
        alt="Perplexity against the positions kept, with and without the first tokens; log probability of a fact's "
        "right word against the distance from it, a line for each size of cache.",
        table=f"{limited}\n\n{dtypes}" if len(quality.limited) > 1 else dtypes,
        meaning=_meaning(quality),
        limits="One small model and one kind of text. Limits are masks over a whole cache: they show quality, not "
        "speed. With sinks, rows keep the positions they were written at, where Xiao et al. number them anew within "
        f"the cache; attention with sinks is a small dense one over gathered rows. Recall is of few tellings "
        f"({quality.trials}): an accuracy of {1 / len(SECRETS):.0%} is chance.",
    )


def _method(study: Study) -> str:
    quality = study.quality
    return (
        f"*Perplexity* of {quality.scored:,} tokens of the language reference that comes with Python "
        f"(`pydoc_data.topics`): the last tokens of stretches of {quality.context:,}, each read alone, in chunks, "
        "over pages, with weights in float32. *Recall*: “The password of the harbour is copper.” after the first "
        "words of such a text, asked for again at several distances by forks that share all pages; the log "
        f"probability of the right word, and how often it beats the other {len(SECRETS) - 1} words of the same kind "
        f"({quality.trials} tellings), with weights as they are served. *Limits* are laid on the "
        f"{quality.full_layers} layers that see everything; the others keep the windows they were trained with. "
        "“first 4” are attention sinks (Xiao et al., 2023): the first 4 tokens stay visible, and count in what is "
        "kept. Bytes are what a sequence of that context would keep. All arms read the same tokens; *nats a token* "
        "are the mean of differences to the whole cache, with their standard error."
    )


def _kept(score: Score) -> str:
    limit = score.arm.limit
    if limit.kept is None:
        return "everything"
    return f"first {limit.sinks}, newest {limit.kept - limit.sinks:,}" if limit.sinks else f"newest {limit.kept:,}"


def _distances(score: Score) -> list[str]:
    return [f"recall at {one.distance:,}" for one in _shown(score)]


def _shown(score: Score) -> list[Recall]:
    recalls = score.recalls
    picks = sorted({0, len(recalls) // 2, len(recalls) - 1})
    return [recalls[index] for index in picks]


def _cells(score: Score, whole: Score) -> list[str]:
    loss, error = score.beyond(whole)
    return [
        size(score.arm.cache_bytes),
        f"{score.perplexity:,.3f}",
        "" if score is whole else f"{loss:+.4f} ± {error:.4f}",
        *(f"{one.log_probability:.2f} ({one.accuracy:.0%})" for one in _shown(score)),
    ]


def _windows_in_short(quality: Quality) -> str:
    pair = _pair(quality)
    if pair is None:
        return "no layer of this model sees everything, so that there is nothing to limit"
    plain, sinks = pair
    return (
        f"perplexity is {quality.limited[0].perplexity:.1f} with the whole cache, {plain.perplexity:,.1f} with the "
        f"newest {plain.arm.limit.kept:,} positions of full layers, {sinks.perplexity:,.1f} when "
        f"{sinks.arm.limit.sinks} of these are the first; {_reach_in_words(quality)}"
    )


def _meaning(quality: Quality) -> str:
    whole = quality.limited[0]
    bits = "; ".join(_bits(one, whole) for one in quality.dtypes[1:])
    text = f"Fewer bits, against float32: {bits}."
    pair = _pair(quality)
    if pair is None:
        return text
    (without, _), (with_sinks, _) = (one.beyond(whole) for one in pair)
    found = (
        f"With the newest {pair[0].arm.limit.kept:,} positions a token loses {without:.2f} nats, with "
        f"{pair[1].arm.limit.sinks} first ones among as many {with_sinks:.2f}. "
    )
    if with_sinks < without / 2:
        found += (
            "So most of what a short window loses is not what the text says, but the place where attention goes that "
            "has nothing to look for. "
        )
    last = pair[1].recalls[-1]
    return (
        f"{found}What the text says is another matter: {_reach_in_words(quality)}. {last.distance:,} tokens after "
        f"the fact, {pair[1].arm.limit.kept:,} positions with the first ones give the right word "
        f"{last.log_probability:.1f} nats, a text that was never told it {quality.blind:.1f}, and the whole cache "
        f"{whole.recalls[-1].log_probability:.1f}. {text}"
    )


def _bits(score: Score, whole: Score) -> str:
    loss, error = score.beyond(whole)
    last = score.recalls[-1]
    recalled = f"{last.accuracy:.0%} recalled at {last.distance:,}"
    return f"{score.arm.dtype} {loss:+.4f} ± {error:.4f} nats a token, {recalled}"


def _reach_in_words(quality: Quality) -> str:
    """How often facts are recalled that a limited cache still holds, and that it holds no more."""
    within, beyond = reach(quality)
    if within is None or beyond is None:
        return "at these distances no window tells facts in its reach from others"
    own = f" and the other layers' {quality.own_window:,}" if quality.own_window else ""
    return (
        f"a fact within reach of a window is recalled {within:.0%} of the time, one beyond it{own} {beyond:.0%} "
        f"(chance: {1 / len(SECRETS):.0%})"
    )


def reach(quality: Quality) -> tuple[float | None, float | None]:
    """Mean accuracy where a window holds the fact as the question is read, and where it lies behind all windows."""
    within: list[float] = []
    beyond: list[float] = []
    for score in quality.limited[1:]:
        window = (score.arm.limit.kept or 0) - score.arm.limit.sinks
        for one in score.recalls:
            if one.distance + QUESTION_TOKENS // 2 <= window:
                within.append(one.accuracy)
            elif one.distance >= max(window, quality.own_window):
                beyond.append(one.accuracy)
    return (fmean(within) if within else None), (fmean(beyond) if beyond else None)


def _pair(quality: Quality) -> tuple[Score, Score] | None:
    """The same middle size without and with sinks; None where nothing was limited."""
    kept = sorted({one.arm.limit.kept for one in quality.limited if one.arm.limit.kept is not None})
    if not kept:
        return None
    size_shown = kept[len(kept) // 2]
    of_size = [one for one in quality.limited if one.arm.limit.kept == size_shown]
    plain, sinks = sorted(of_size, key=lambda one: one.arm.limit.sinks)
    return plain, sinks
