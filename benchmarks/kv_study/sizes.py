"""How much is measured: the full study, and a quick one that shows that all of it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Lengths and contexts in tokens, the rest in numbers of things.

    ``recompute_lengths`` are where the time without a cache is sampled, ``generated`` how long the text with one grows.
    A windowed cache is asked at ``recall_distances`` from a fact, and scored over the last ``scored`` tokens of each of
    ``texts`` stretches of ``context``. ``limits`` are the sizes of its windows.
    """

    name: str
    recompute_lengths: tuple[int, ...]
    recompute_repeats: int
    generated: int
    memory_longest: int
    memory_requests: int
    memory_pages: int
    context: int
    scored: int
    texts: int
    limits: tuple[int, ...]
    recall_distances: tuple[int, ...]
    recall_trials: int
    table_lengths: tuple[int, ...]
    table_repeats: int
    finished_requests: int


FULL = Sizes(
    name="full",
    recompute_lengths=(1, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
    recompute_repeats=3,
    generated=4096,
    memory_longest=8192,
    memory_requests=1000,
    memory_pages=4096,
    context=2048,
    scored=1024,
    texts=3,
    limits=(64, 128, 256, 512, 1024),
    recall_distances=(64, 128, 256, 384, 512, 768, 1024, 1536, 2000),
    recall_trials=8,
    table_lengths=(64, 256, 1024, 4096, 16_384, 65_536),
    table_repeats=2000,
    finished_requests=256,
)
QUICK = Sizes(
    name="quick",
    recompute_lengths=(1, 32, 64, 128, 256),
    recompute_repeats=1,
    generated=256,
    memory_longest=1024,
    memory_requests=60,
    memory_pages=1024,
    context=256,
    scored=128,
    texts=1,
    limits=(32, 128),
    recall_distances=(64, 128, 224),
    recall_trials=1,
    table_lengths=(64, 1024, 4096),
    table_repeats=100,
    finished_requests=12,
)
