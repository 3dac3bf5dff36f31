"""What finished requests leave behind: pages that nobody gave back, and memory of the process.

A whole engine with prefix caching serves requests, a few at a time; some end before their last token. Whenever one has
ended every page is accounted for. Its pages were touched before the first request, so that memory which grows is not
theirs.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kv_study.progress import Progress
from benchmarks.kv_study.sizes import Sizes
from benchmarks.kv_study.studied_model import EngineShape, StudiedModel
from benchmarks.kv_study.timing import submit
from block_manager.manager import BlockManager
from engine.engine import Engine
from scheduler.request import FinishReason

AT_ONCE = 8
LONGEST_PROMPT, LONGEST_ANSWER = 160, 24
ABORTED_EVERY = 7
STATM = Path("/proc/self/statm")
SEED = 8


@dataclass(frozen=True, slots=True)
class Leftover:
    """After ``finished`` requests: pages by state, those that requests under way hold among them."""

    finished: int
    free: int
    cached: int
    held: int
    rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class Leftovers:
    """``problems`` are an audit's, of all moments. ``ended`` is idle, ``dropped`` after the cache was dropped too."""

    total: int
    aborted: int
    moments: tuple[Leftover, ...]
    problems: tuple[str, ...]
    ended: Leftover
    dropped: Leftover

    def rss_growth(self) -> int | None:
        """Bytes that the process took between the end of the first quarter of the requests and that of the last."""
        first, last = self.moments[len(self.moments) // 4].rss_bytes, self.ended.rss_bytes
        return None if first is None or last is None else last - first


def measure_leftovers(studied: StudiedModel, sizes: Sizes, progress: Progress) -> Leftovers:
    progress.begin("what is left behind", sizes.finished_requests)
    shape = EngineShape(AT_ONCE, LONGEST_PROMPT + LONGEST_ANSWER, 512, caches_prefixes=True)
    engine = studied.make_engine(studied.load(), studied.plan(), shape)
    blocks = engine.scheduler.blocks
    draws = random.Random(SEED)
    moments: list[Leftover] = []
    problems: list[str] = []
    submitted = finished = aborted = 0
    running: set[str] = set()
    while finished < sizes.finished_requests:
        ended: dict[str, FinishReason] = {}
        while len(running) < AT_ONCE and submitted < sizes.finished_requests:
            name = f"request-{submitted}"
            prompt = studied.prose(draws.randrange(10_000), draws.randint(1, LONGEST_PROMPT))
            submit(engine, prompt, draws.randint(1, LONGEST_ANSWER), name)
            running.add(name)
            submitted += 1
            if submitted % ABORTED_EVERY == 0:
                ended |= _step(engine)  # so that it holds pages when it goes
                engine.abort([name])
        ended |= _step(engine)
        aborted += sum(reason is FinishReason.ABORT for reason in ended.values())
        for name in sorted(ended):
            running.remove(name)
            finished += 1
            problems += _problems(blocks, name)
            moments.append(_look(engine, finished))
            progress.step()
    while engine.has_work:
        engine.step()
    problems += blocks.audit()
    idle = _look(engine, finished)
    blocks.drop_cache()
    problems += blocks.audit()
    return Leftovers(blocks.pool.num_pages, aborted, tuple(moments), tuple(problems), idle, _look(engine, finished))


def resident_bytes() -> int | None:
    """Of this process; None where Linux does not say."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _step(engine: Engine) -> dict[str, FinishReason]:
    """Why requests have ended, by name."""
    deltas = engine.step().deltas
    return {delta.request_id: delta.finish_reason for delta in deltas if delta.finish_reason is not None}


def _problems(blocks: BlockManager, name: str) -> list[str]:
    """What is wrong after ``name`` has ended."""
    usage = blocks.usage()
    found = blocks.audit()
    if name in blocks.sequences:
        found.append(f"{name} has ended and still has a block table")
    if usage.free + usage.cached + usage.held != usage.total:
        found.append(f"{usage.free} free, {usage.cached} cached and {usage.held} held pages are not {usage.total}")
    return found


def _look(engine: Engine, finished: int) -> Leftover:
    usage = engine.scheduler.blocks.usage()
    return Leftover(finished, usage.free, usage.cached, usage.held, resident_bytes())
