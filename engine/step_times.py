"""StepTimes: how long the engine's steps took, in parts, and how large they were.

    schedule   who runs with how many tokens, and what drawing needs
    model      waiting for the logits of a step
    sample     waiting for its tokens to be drawn from them
    output     what the tokens mean to their requests, as messages

It divides the engine's own time, so a step that overlaps another counts only for what the engine waited for it.
Invariant: the parts add up to ``seconds``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.histogram import Histogram
from engine.messages import STEP_DURATION_BOUNDS, STEP_PARTS, STEP_SEQUENCES_BOUNDS, STEP_TOKENS_BOUNDS
from scheduler.batch import ScheduledBatch


class StepTimes:
    """Since the start, in seconds on ``clock``.

    begin -> lap("schedule") -> lap_of_wait -> lap("output") -> end        a step has ended
    begin -> lap("schedule") -> lap_of_wait                                one was launched: counts with the next
    begin -> lap("schedule") -> drop                                       there was none
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.parts = dict.fromkeys(STEP_PARTS, 0.0)
        self.durations = Histogram.empty(STEP_DURATION_BOUNDS)
        self.tokens = Histogram.empty(STEP_TOKENS_BOUNDS)
        self.sequences = Histogram.empty(STEP_SEQUENCES_BOUNDS)
        self.steps = 0
        self._clock = clock
        self._latest = 0.0
        self._open = dict.fromkeys(STEP_PARTS, 0.0)

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(self.parts.values())

    def begin(self) -> None:
        """The engine turns to its steps."""
        self._latest = self._clock()

    def lap(self, part: str) -> None:
        """What was done since the latest call was ``part``."""
        self._open[part] += self._elapsed()

    def lap_of_wait(self, sample_seconds: float = 0.0) -> None:
        """Since the latest call a step was waited for, at whose end drawing took so long."""
        waited = self._elapsed()
        sample = min(sample_seconds, waited)
        self._open["model"] += waited - sample
        self._open["sample"] += sample

    def end(self, batch: ScheduledBatch) -> None:
        """A step has ended."""
        self.durations.observe(sum(self._open.values()))
        self.tokens.observe(batch.num_tokens)
        self.sequences.observe(len(batch.requests))
        self.steps += 1
        for part, seconds in self._open.items():
            self.parts[part] += seconds
        self.drop()

    def drop(self) -> None:
        """No step came of it."""
        self._open = dict.fromkeys(STEP_PARTS, 0.0)

    def _elapsed(self) -> float:
        before, self._latest = self._latest, self._clock()
        return self._latest - before
