"""Sections (e) and (f): what keeping the cache costs, and what finished requests leave behind."""

from __future__ import annotations

from benchmarks.kv_study.fit import PowerLaw, fit_power_law
from benchmarks.kv_study.markdown import ratio, size, table, time
from benchmarks.kv_study.section import Section
from benchmarks.kv_study.study import Study


def upkeep_section(study: Study) -> Section:
    upkeep = study.upkeep
    lengths = [float(one.length) for one in upkeep]
    columns = {
        "append to all tables": [one.append for one in upkeep],
        "hash, a token's share": [one.hashing for one in upkeep],
        "find a position": [one.lookup for one in upkeep],
        "write K and V, one layer": [one.store for one in upkeep],
    }
    laws: dict[str, PowerLaw] = {name: fit_power_law(lengths, values) for name, values in columns.items()}
    rows = [
        [f"{one.length:,}", *(time(values[index]) for values in columns.values())] for index, one in enumerate(upkeep)
    ]
    rows.append(["exponent of length", *(str(law) for law in laws.values())])
    rows.append(["longest against shortest", *(ratio(values[-1] / values[0]) for values in columns.values())])
    longest = upkeep[-1]
    bookkeeping = longest.append + longest.hashing
    step = study.timing.generations[0].quarter(3)
    exponents = sorted(law.exponent for law in laws.values())
    return Section(
        title="(e) Append and lookup against length",
        question="Does it cost more to add to a long cache, or to find something in one?",
        answer=f"at {longest.length:,} tokens a token's place costs {time(longest.append)}, its share of a hash "
        f"{time(longest.hashing)}, a lookup {time(longest.lookup)}; exponents of "
        f"length are {exponents[0]:.2f} to {exponents[-1]:.2f}",
        method="A sequence was grown to each length in the real block manager, with prefix caching on, then by one "
        f"token at a time ({study.setting.sizes.table_repeats:,} of them): `grow` and `commit`, which take and give "
        "back blocks and make full ones findable, in Python, and the hash of its blocks (sha256, chained), each as a "
        "token's share of a whole block, median over blocks. A lookup goes from a position to its slot (block table, "
        "times, plus). The write is the kernel that a step calls, for one token in one layer.",
        plot="upkeep",
        alt="Microseconds against length, both logarithmic: four nearly flat lines.",
        table=table(["tokens", *columns], rows, text_columns=0),
        meaning="Appending and finding are index arithmetic: what they do does not depend on length. The bookkeeping "
        f"of a token, {time(bookkeeping)}, is {bookkeeping / step:.2%} of a step of (b); its keys and values take "
        f"{time(longest.store)} to write in each layer.",
        limits="Times of Python calls vary with caches of the processor and with what else runs; what they do is the "
        "same at any length.",
    )


def leftovers_section(study: Study) -> Section:
    left = study.leftovers
    growth, ended, dropped = left.rss_growth(), left.ended, left.dropped
    count = len(left.moments)
    found = "nothing wrong" if not left.problems else f"{len(left.problems)} problems, the first: {left.problems[0]}"
    moments = (
        ("after a quarter of the requests", left.moments[count // 4]),
        ("idle, all have ended", ended),
        ("cache dropped", dropped),
    )
    rows = [
        [name, *(f"{number:,}" for number in (one.free, one.cached, one.held)), _resident(one.rss_bytes)]
        for name, one in moments
    ]
    grown = (
        "Linux alone says how memory grew."
        if growth is None
        else (f"From a quarter of the requests on to the end, the process grew by {_signed(growth)}.")
    )
    return Section(
        title="(f) What finished requests leave behind",
        question="Is a request gone when it is over?",
        answer=f"after {count:,} requests the audits found {found}; {ended.held:,} of {left.total:,} pages are held, "
        "and "
        f"{dropped.free:,} free once the cache is dropped" + ("" if growth is None else f"; memory {_signed(growth)}"),
        method=f"A whole engine with prefix caching served {count:,} requests, 8 at a time, of up to 160 tokens in "
        f"and 24 out; {left.aborted:,} were aborted on their way. At the end of each the block manager accounted for "
        "every page (`audit()`), free, cached and held were added up, and the request's block table had to be gone. "
        "All pages had been touched before, so that memory that grows is not theirs.",
        plot="leftovers",
        alt="Left: pages held, cached and free at the end of each request add up to the pool. Right: resident memory.",
        table=table(["moment", "free", "cached", "held", "resident memory"], rows),
        meaning=f"The audits of all {count + 2:,} moments found {found}. When the last request had ended, "
        f"{ended.held:,} pages were held, and free and cached made {ended.free + ended.cached:,} of {left.total:,}; "
        f"what stays is the prefix cache, which `drop_cache` gives back to the last page ({dropped.free:,} free). "
        f"{grown}",
        limits="Memory of the process has the allocators of Python and torch in it, which give little back; so it is "
        "bounded rather than equal.",
    )


def _resident(count: int | None) -> str:
    return "-" if count is None else size(count)


def _signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}"
