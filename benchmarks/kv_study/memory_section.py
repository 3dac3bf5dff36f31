"""Section (c): memory against length, three ways of keeping a cache."""

from __future__ import annotations

from benchmarks.kv_study.markdown import ratio, size, table
from benchmarks.kv_study.memory import Memory
from benchmarks.kv_study.section import Section
from benchmarks.kv_study.study import Study


def memory_section(study: Study) -> Section:
    memory, mix = study.memory, study.memory.mix
    shown = [length for length in (64, 100, 300, 1000, 2500, 8000) if length <= len(memory.uniform)]
    heads = ["tokens", "filled", "reserved whole", "doubling", "copied for it", "pages", "pages, windows given back"]
    single = table(heads, [_row(memory, length) for length in shown], text_columns=0)
    mixed = table(
        ["way", "requests at once", "against reserved", "waste"],
        [
            [name, f"{count:,.1f}", ratio(count / mix.reserved), f"{waste:.1%}"]
            for name, count, waste in (
                ("reserved whole (computed)", mix.reserved, mix.reserved_waste),
                ("grown by doubling (computed)", mix.doubling, mix.doubling_waste),
                ("pages, every layer keeps everything (measured)", mix.pages, mix.pages_waste),
                ("pages, windows given back (measured)", mix.windowed, mix.windowed_waste),
            )
        ],
    )
    worst = max(one.wasted for one in memory.uniform)
    return Section(
        title="(c) Memory against length",
        question="How much memory holds nothing, when a cache is contiguous and when it is in pages?",
        answer=f"of a mix of requests, pages waste {mix.pages_waste:.1%}, doubling {mix.doubling_waste:.0%}, a "
        f"reservation of {mix.longest:,} tokens {mix.reserved_waste:.0%}; {ratio(mix.pages / mix.reserved)} as many "
        "requests fit in pages as in reservations",
        method=f"A token's keys and values take {size(memory.token_bytes)} in all layers ({study.setting.page_dtype} "
        f"pages of {memory.block_size} tokens). *Pages* were counted in the real block manager while one sequence "
        "grew in it token by token: once with one table for all layers, once as the model is, with a table for each "
        "group of layers that see equally far and pages behind windows given back. *Reserved whole* "
        f"({memory.reserved_tokens:,} tokens) and *doubling* (from 16 tokens) are arithmetic, for all layers. The mix "
        f"is the trace of `benchmarks.page_waste` ({mix.requests:,} requests, {mix.mean_input:.0f} tokens in and "
        f"{mix.mean_output:.0f} out on average, {mix.longest:,} at most together), run by the real scheduler in "
        f"{size(mix.memory)} of pages; contiguous caches hold as many of these requests as their mean size over all "
        "decoding steps allows.",
        plot="memory",
        alt="Left: megabytes against length; a flat line, doubling steps, a straight line, and a line that bends at "
        "the window. Right: bars of how many requests fit.",
        table=f"{single}\n\n{mixed}",
        meaning=f"One sequence never wastes more than a block: {size(worst)} at most, whatever its length, where "
        "doubling wastes up to half of what it holds and copies it on the way, with old and new there at once. In "
        f"the mix that is {mix.pages:,.0f} requests where reservations hold {mix.reserved:,.0f}"
        + (
            f", and {mix.windowed:,.0f} with windows given back."
            if any(window is not None for window in study.setting.windows)
            else "."
        ),
        limits="Doubling is given the best case: no copy's second buffer, no holes between caches, and no request "
        f"that cannot grow when it must. The same arithmetic expects {mix.estimated_pages:,.1f} requests in pages, "
        f"where {mix.pages:,.1f} were measured: the scheduler keeps room for growth, and what runs while others wait "
        "is younger than the average. Lengths are drawn, not a trace of real users.",
    )


def _row(memory: Memory, length: int) -> list[str]:
    filled = length * memory.token_bytes
    uniform, grouped = memory.uniform[length - 1], memory.grouped[length - 1]
    return [
        f"{length:,}",
        size(filled),
        f"{size(memory.reserved())} ({1 - filled / memory.reserved():.0%} waste)",
        f"{size(memory.doubling(length))} ({1 - filled / memory.doubling(length):.0%})",
        size(memory.doubling_copied(length)),
        f"{size(uniform.held)} ({uniform.wasted / uniform.held:.1%})",
        f"{size(grouped.held)} ({grouped.wasted / grouped.held:.1%})",
    ]
