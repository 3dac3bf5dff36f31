"""The study: all measurements in their order, and what they found as one value."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.kv_study.leftovers import Leftovers, measure_leftovers
from benchmarks.kv_study.memory import Memory, measure_memory
from benchmarks.kv_study.progress import Progress
from benchmarks.kv_study.quality import Quality, measure_quality
from benchmarks.kv_study.sizes import Sizes
from benchmarks.kv_study.studied_model import StudiedModel
from benchmarks.kv_study.timing import Timing, measure_timing
from benchmarks.kv_study.upkeep import Upkeep, measure_upkeep
from benchmarks.machine import Conditions

T = TypeVar("T")

# seconds on two cores of a server, for the full study
WEIGHTS = {
    "time per token": 150.0,
    "perplexity": 220.0,
    "recall": 160.0,
    "memory": 20.0,
    "append and lookup": 15.0,
    "what is left behind": 25.0,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What was studied, and where. ``seconds``: how long it took."""

    model: str
    page_dtype: str
    block_size: int
    threads: int
    backend: str
    windows: tuple[int | None, ...]
    conditions: Conditions
    sizes: Sizes
    seconds: float


@dataclass(frozen=True, slots=True)
class Study:
    """All that was found."""

    setting: Setting
    timing: Timing
    memory: Memory
    quality: Quality
    upkeep: tuple[Upkeep, ...]
    leftovers: Leftovers

    def to_json(self) -> str:
        """Raw results; times in seconds, sizes in bytes, lengths in tokens."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def run_study(studied: StudiedModel, sizes: Sizes) -> Study:
    """Measure everything, one thing after the other."""
    conditions, began = Conditions.now(), time.monotonic()

    def part(measure: Callable[[StudiedModel, Sizes, Progress], T]) -> T:
        found = measure(studied, sizes, progress)
        gc.collect()  # models and engines are full of cycles, and the next ones need their memory
        return found

    with Progress(WEIGHTS) as progress:
        timing = part(measure_timing)
        upkeep = part(measure_upkeep)
        leftovers = part(measure_leftovers)
        memory = part(measure_memory)
        quality = part(measure_quality)
    setting = Setting(
        model=studied.checkpoint.name,
        page_dtype=studied.page_dtype_name,
        block_size=memory.block_size,
        threads=studied.threads,
        backend=studied.backend.name,
        windows=studied.windows,
        conditions=conditions,
        sizes=sizes,
        seconds=time.monotonic() - began,
    )
    return Study(setting, timing, memory, quality, upkeep, leftovers)
