"""Measurements: what a run is judged by, summed up while it goes on, in memory that does not grow with it.

The simulator says what happened; nothing in here changes what happens next. All times are on its clock.
"""

from __future__ import annotations

from block_manager.manager import BlockManager
from scheduler.scheduler import Scheduler
from scheduler.simulation.forecast_error import ForecastError, RetryWatch
from scheduler.simulation.histogram import Histogram
from scheduler.simulation.timeline import Moment, Timeline


class Measurements:
    """Of one run. Pages and queue are weighted by time; ``*_seconds`` sums are in pages or requests x seconds."""

    def __init__(self, waste_every: int) -> None:
        self.ttft = Histogram()
        self.itl = Histogram()
        self.queue_wait = Histogram()
        self.longest_wait = 0.0
        self.start_forecast = ForecastError()
        self.retry_after = RetryWatch()
        self.timeline = Timeline()
        self.num_steps = 0
        self.computed_tokens = 0
        self.peak_held_pages = 0
        self.page_seconds = 0.0
        self.max_queue = 0
        self.queue_seconds = 0.0
        self.busy_seconds = 0.0
        self._waste_every = waste_every
        self._held_slots = 0
        self._wasted_slots = 0

    def step(self, scheduler: Scheduler, began: float, seconds: float, num_tokens: int) -> None:
        """A step of ``num_tokens`` tokens has begun; it holds its pages and leaves its queue for ``seconds``."""
        held = sum(scheduler.blocks.pool.held_pages)
        num_waiting = len(scheduler.waiting)
        if held > self.peak_held_pages:
            self.peak_held_pages = held
        if num_waiting > self.max_queue:
            self.max_queue = num_waiting
        self.page_seconds += held * seconds
        self.queue_seconds += num_waiting * seconds
        self.busy_seconds += seconds
        self.computed_tokens += num_tokens
        if not self.num_steps % self.timeline.stride:
            preemptions = scheduler.counters.num_preemptions
            self.timeline.add(self.num_steps, Moment(began, held, len(scheduler.running), num_waiting, preemptions))
        self.num_steps += 1

    def step_ended(self, blocks: BlockManager) -> None:
        """The tokens of the step are in their pages: now and then, count the slots that are held and not filled."""
        if (self.num_steps - 1) % self._waste_every:
            return
        for group in blocks.usage().groups:
            self._held_slots += group.held_slots
            self._wasted_slots += group.wasted_slots

    def waited(self, seconds: float, *, started: bool) -> None:
        """A request left the queue for the first time, to run or for good."""
        self.longest_wait = max(self.longest_wait, seconds)
        if started:
            self.queue_wait.add(seconds)

    @property
    def waste(self) -> float:
        """Share of held slots that are not filled, 0 to 1, over the steps that were looked at."""
        return self._wasted_slots / self._held_slots if self._held_slots else 0.0
