"""Section (d): what a smaller cache costs in quality."""

from __future__ import annotations

from benchmarks.kv_study.markdown import size, table
from benchmarks.kv_study.quality import SECRETS, Quality, Recall, Score
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
        "right "
        "word against the distance from it, a line for each size of cache.",
        table=f"{limited}\n\n{dtypes}" if len(quality.limited) > 1 else dtypes,
        meaning=_meaning(quality),
        limits="One small model and one kind of text. Limits are masks over a whole cache: they show quality, not "
        "speed. "
        "With sinks, rows keep the positions they were written at, where Xiao et al. number them anew within the "
        "cache; "
        "attention with sinks is a small dense one over gathered rows. "
        f"{quality.trials} tellings a cell of recall are few: an accuracy of {1 / len(SECRETS):.0%} is chance.",
    )


def _method(study: Study) -> str:
    quality = study.quality
    return (
        f"*Perplexity* of {quality.scored:,} tokens of the language reference that comes with Python "
        f"(`pydoc_data.topics`): the last tokens of stretches of {quality.context:,}, each read alone, in chunks, over "
        "pages, with weights in float32. *Recall*: “The password of the harbour is copper.” at the beginning of such a "
        "text, asked for again at several distances by forks that share all pages; the log probability of the right "
        "word, "
        f"and how often it beats the other {len(SECRETS) - 1} words of the same kind ({quality.trials} tellings), with "
        f"weights as they are served. *Limits* are laid on the {quality.full_layers} layers that see everything; the "
        "others keep the windows they were trained with. “first 4” are attention sinks (Xiao et al., 2023): the first "
        "4 "
        "tokens stay visible, and count in what is kept. Bytes are what a sequence of that context would keep. All "
        "arms "
        "read the same tokens; *nats a token* are the mean of differences to the whole cache, with their standard "
        "error."
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
        f"perplexity {quality.limited[0].perplexity:.1f} with the whole cache, {plain.perplexity:,.1f} with the newest "
        f"{plain.arm.limit.kept:,} positions of full layers, {sinks.perplexity:,.1f} when {sinks.arm.limit.sinks} of "
        "these are the first; a fact is recalled while it is within reach, and not beyond"
    )


def _meaning(quality: Quality) -> str:
    pair = _pair(quality)
    first, last = quality.limited[0].recalls[0], quality.limited[0].recalls[-1]
    bits = "; ".join(
        f"{one.arm.dtype} pages {one.beyond(quality.dtypes[0])[0]:+.4f} ± {one.beyond(quality.dtypes[0])[1]:.4f} nats "
        "a token, "
        f"{one.recalls[-1].accuracy:.0%} recalled at {one.recalls[-1].distance:,}"
        for one in quality.dtypes[1:]
    )
    text = f"Fewer bits cost little: {bits}."
    if pair is None:
        return text
    plain, sinks = pair
    return (
        f"Without the first tokens, {plain.arm.limit.kept:,} positions lose {plain.beyond(quality.limited[0])[0]:.2f} "
        "nats a "
        f"token; with {sinks.arm.limit.sinks} of them kept, {sinks.beyond(quality.limited[0])[0]:.2f}: most of what a "
        "short "
        "window loses is the place where idle attention goes, not what the text says. Sinks bring fluency back, but "
        "not "
        f"memory. The whole cache knows the word {first.distance:,} tokens on ({first.log_probability:.1f} nats, "
        f"{first.accuracy:.0%}) and {last.distance:,} tokens on ({last.log_probability:.1f}, {last.accuracy:.0%}); "
        "with "
        f"{sinks.arm.limit.kept:,} positions and sinks it has {sinks.recalls[-1].log_probability:.1f} there, where a "
        "text that was "
        f"never told it has {quality.blind:.1f}. {text}"
    )


def _pair(quality: Quality) -> tuple[Score, Score] | None:
    """The same middle size without and with sinks; None where nothing was limited."""
    kept = sorted({one.arm.limit.kept for one in quality.limited if one.arm.limit.kept is not None})
    if not kept:
        return None
    size_shown = kept[len(kept) // 2]
    of_size = [one for one in quality.limited if one.arm.limit.kept == size_shown]
    plain, sinks = sorted(of_size, key=lambda one: one.arm.limit.sinks)
    return plain, sinks
