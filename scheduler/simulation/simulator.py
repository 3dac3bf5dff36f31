"""Simulator: runs the product's scheduler and block manager over a trace, on a clock that jumps from event to event.

    arrivals ──► Scheduler.add ──► schedule() ──► a step takes StepCost.seconds ──► update() ──► measurements
       ▲                                                   │
       └──────── those that come while it runs ◄───────────┘

Only the model is missing: a step computes nothing, and every request draws a token of its own until it has drawn
``output_tokens``, the last of them a stop token where its client allowed more. Steps run one after the other; the time
between two, and that of the API process, count as nothing. Clients do not come again when they are refused, and none
leaves early.

Requests are forgotten when they end, and none is looked at in a step that gives it no token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from block_manager.hashing import BlockHashes
from scheduler.batch import ScheduledBatch
from scheduler.refusal import NeverFits, Refusal, RefusalReason
from scheduler.request import Request
from scheduler.simulation.fairness import Fairness, Tenant
from scheduler.simulation.measurements import Measurements
from scheduler.simulation.prompts import STOP_ID, token_ids
from scheduler.simulation.report import Report
from scheduler.simulation.settings import Settings
from scheduler.simulation.timeline import Timeline
from scheduler.simulation.trace import TraceRequest

STOPS = frozenset({STOP_ID})
FAIRNESS_WINDOW = 500  # steps
PROGRESS_EVERY = 256  # steps
NEVER_FITS = "never_fits"  # beside the reasons of `RefusalReason`
_NEVER = -1.0


class _OpenRequest:
    """A request that has not ended: tokens it will still draw, and when it drew the latest."""

    __slots__ = ("asked", "expected", "latest", "left", "request", "stops", "tenant")

    def __init__(self, request: Request, tenant: Tenant, asked_for: TraceRequest) -> None:
        self.request = request
        self.tenant = tenant
        self.left = asked_for.output_tokens
        self.stops = asked_for.output_tokens < asked_for.max_tokens
        self.latest = _NEVER
        self.asked = _NEVER  # when a forecast of its start was made
        self.expected = 0.0


class Simulator:
    """One run of ``trace`` over ``num_pages`` pages; `run` may be called once.

    ``on_progress`` is called every few steps with the simulated seconds and the number of requests that have ended.
    """

    def __init__(
        self,
        settings: Settings,
        num_pages: int,
        trace: Iterable[TraceRequest],
        on_progress: Callable[[float, int], None] | None = None,
    ) -> None:
        self.now = 0.0
        self.scheduler = settings.scheduler(num_pages, self.clock)
        self.measurements = Measurements(settings.waste_every)
        self.fairness = Fairness(settings.tenant_weights)
        self.refusals: Counter[str] = Counter()
        self.num_submitted = 0
        self.num_finished = 0
        self.first_arrival = 0.0
        self._settings = settings
        self._groups = settings.groups
        self._trace = iter(trace)
        self._next = next(self._trace, None)
        self._open: dict[str, _OpenRequest] = {}
        self._draws: dict[str, int] = {}  # the next token of every open request
        self._to_forecast: list[str] = []
        self._on_progress = on_progress

    def clock(self) -> float:
        """Simulated seconds; time 0 is that of the trace."""
        return self.now

    @property
    def timeline(self) -> Timeline:
        """The course of the run so far."""
        return self.measurements.timeline

    def run(self) -> Report:
        """Until every request of the trace has ended."""
        scheduler = self.scheduler
        self.first_arrival = self._next.arrival if self._next is not None else 0.0
        while self._next is not None or scheduler.has_work:
            self._forecast()
            batch = scheduler.schedule()
            self._take_refusals()
            if batch:
                self._step(batch)
            elif self._next is not None:
                self._arrivals(self._next.arrival)
            elif scheduler.has_work:
                raise RuntimeError(f"{len(scheduler.waiting)} requests wait and none can run: this is a defect")
        self.fairness.end_window()
        return self._report()

    # ---- events

    def _step(self, batch: ScheduledBatch) -> None:
        scheduler, measured, began = self.scheduler, self.measurements, self.now
        num_tokens = batch.num_tokens
        seconds = self._settings.cost.seconds(batch, num_tokens, self._groups)
        measured.step(scheduler, began, seconds, num_tokens)
        if self.refusals[RefusalReason.QUEUE_FULL]:
            measured.retry_after.freed(self._places_freed(), began)
        self._arrivals(began + seconds)
        scheduler.observe(batch, seconds)
        self._drawn(batch, began)
        measured.step_ended(scheduler.blocks)
        if not measured.num_steps % FAIRNESS_WINDOW:
            self.fairness.end_window()
        if self._on_progress is not None and not measured.num_steps % PROGRESS_EVERY:
            self._on_progress(self.now, self.num_submitted - len(self._open))

    def _drawn(self, batch: ScheduledBatch, began: float) -> None:
        """The step is over. Most requests had a token at its beginning: their gap is the same, and counted once."""
        now, open_requests, draws = self.now, self._open, self._draws
        num_alike = 0
        for request, _, reason, _ in self.scheduler.update(batch, draws):
            name = request.request_id
            one = open_requests[name]
            if one.latest == began:
                num_alike += 1
            elif one.latest == _NEVER:
                self._first_token(one)
            else:
                self.measurements.itl.add(now - one.latest)
            one.latest = now
            one.left -= 1
            one.tenant.service += Fairness.TOKEN_DRAWN
            if reason is not None:
                self.num_finished += 1
                del open_requests[name], draws[name]
            elif one.left == 1 and one.stops:
                draws[name] = STOP_ID
        if num_alike:
            self.measurements.itl.add(now - began, num_alike)

    def _first_token(self, one: _OpenRequest) -> None:
        request = one.request
        self.measurements.ttft.add(self.now - request.arrived)
        one.tenant.service += request.num_prompt_tokens - (request.num_cached_tokens or 0)
        self._started(one)

    def _started(self, one: _OpenRequest) -> None:
        request = one.request
        assert request.started is not None
        one.tenant.left_queue()
        self.measurements.waited(request.started - request.arrived, started=True)
        if one.asked != _NEVER:
            self.measurements.start_forecast.compare(one.expected, request.started - one.asked)

    def _take_refusals(self) -> None:
        refusals = self.scheduler.take_refusals()
        if not refusals:
            return
        self.refusals.update(refusal.reason for refusal in refusals)
        for refusal in refusals:
            self._forget_refused(refusal)
        told = [refusal.retry_after for refusal in refusals if refusal.retry_after is not None]
        for place, seconds in enumerate(told, self._places_freed() + 1):
            self.measurements.retry_after.refused(place, self.now, seconds)

    def _forget_refused(self, refusal: Refusal) -> None:
        one = self._open.pop(refusal.request_id)
        del self._draws[refusal.request_id]
        if one.latest != _NEVER:
            return
        if one.request.started is not None:
            self._started(one)
            return
        one.tenant.left_queue()
        if refusal.reason is not RefusalReason.QUEUE_FULL:
            self.measurements.waited(self.now - one.request.arrived, started=False)

    def _places_freed(self) -> int:
        """Requests that have left the queue since the start, those that came back after a preemption each time."""
        refused = self.refusals[RefusalReason.QUEUE_FULL] + self.refusals[NEVER_FITS]
        came = self.num_submitted - refused + self.scheduler.counters.num_preemptions
        return came - len(self.scheduler.waiting)

    # ---- arrivals

    def _arrivals(self, until: float) -> None:
        """Queue what comes by ``until``, and let the clock arrive there."""
        while self._next is not None and self._next.arrival <= until:
            self.now = max(self.now, self._next.arrival)
            self._submit(self._next)
            self._next = next(self._trace, None)
        self.now = until

    def _submit(self, asked_for: TraceRequest) -> None:
        self.num_submitted += 1
        settings, name = self._settings, str(self.num_submitted)
        request = Request(
            request_id=name,
            token_ids=token_ids(asked_for, self.num_submitted),
            max_tokens=asked_for.max_tokens,
            eos_token_ids=STOPS,
            stop_token_ids=frozenset(),
            block_hashes=BlockHashes(settings.block_size),
            priority=asked_for.priority,
            tenant=asked_for.tenant,
            timeout=settings.timeout,
            queue_timeout=settings.queue_timeout,
        )
        try:
            self.scheduler.add(request)
        except NeverFits:
            self.refusals[NEVER_FITS] += 1
            return
        one = _OpenRequest(request, self.fairness.arrived(asked_for.tenant), asked_for)
        self._open[name] = one
        self._draws[name] = STOP_ID if one.left == 1 and one.stops else self.num_submitted
        if not self.num_submitted % settings.forecast_every:
            self._to_forecast.append(name)

    def _forecast(self) -> None:
        """Tell some of those that have just come when they will start."""
        for name in self._to_forecast:
            explanation = self.scheduler.explain(name)
            if explanation is not None and explanation.expected_start_seconds is not None:
                one = self._open[name]
                one.asked, one.expected = self.now, explanation.expected_start_seconds
        self._to_forecast.clear()

    # ---- the result

    def _report(self) -> Report:
        scheduler, measured = self.scheduler, self.measurements
        counters = scheduler.counters
        seconds = self.now - self.first_arrival
        preemptions = {f"{kind}/{cause}": count for (kind, cause), count in sorted(counters.preemptions.items())}
        return Report(
            num_pages=scheduler.blocks.pool.num_pages,
            block_size=scheduler.blocks.block_size,
            submitted=self.num_submitted,
            finished=self.num_finished,
            refusals={str(reason): count for reason, count in sorted(self.refusals.items()) if count},
            seconds=seconds,
            busy_seconds=measured.busy_seconds,
            steps=measured.num_steps,
            prompt_tokens=counters.prompt_tokens,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            computed_tokens=measured.computed_tokens,
            recomputed_tokens=counters.recomputed_tokens,
            generated_tokens=counters.generation_tokens,
            preemptions=preemptions,
            overtakes=counters.overtakes,
            evicted_pages=sum(scheduler.blocks.pool.evicted_pages),
            peak_held_pages=measured.peak_held_pages,
            mean_held_pages=measured.page_seconds / seconds if seconds else 0.0,
            internal_waste=measured.waste,
            ttft=measured.ttft.percentiles(),
            itl=measured.itl.percentiles(),
            queue_wait=measured.queue_wait.percentiles(),
            longest_wait=measured.longest_wait,
            ttft_p99_of_all=measured.ttft.percentile(0.99, self.refusals.total()),
            max_queue=measured.max_queue,
            mean_queue=measured.queue_seconds / seconds if seconds else 0.0,
            num_tenants=self.fairness.num_tenants,
            fairness=self.fairness.index,
            fairness_while_waiting=self.fairness.index_while_waiting,
            start_forecast=measured.start_forecast.summary(),
            retry_after=measured.retry_after.error.summary(),
        )
