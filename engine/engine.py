"""Engine: the step loop's body, in one process.

    submit / abort -> scheduler.schedule() -> runner.launch() -> scheduler.update() -> one StepOutput

With an executor that overlaps, step N + 1 is scheduled, and submitted, while step N runs:

    step()   schedule N+1 | submit N+1 | wait for N | update N | its StepOutput
    device          N .................................| N+1 ...

Contains failures: a step that raises fails the requests it ran, gives their pages back and leaves the rest alone; after
``MAX_FAILED_STEPS`` in a row the engine gives up, since the device is then the likelier cause.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec

from block_manager.hashing import BlockHashes
from engine.adapters import AdapterError, Adapters
from engine.deltas import (
    aborted_delta,
    drawn_delta,
    failed_delta,
    failure_of_draw,
    prompt_delta,
    refused_delta,
    whole_delta,
)
from engine.draws import Constrain, Draws
from engine.grammar_compiler import GrammarCompiler
from engine.grammar_queue import GrammarQueue
from engine.idle_work import IdleWork
from engine.log_format import tell
from engine.logit_edits import LogitEditor
from engine.messages import (
    EngineRequest,
    EngineStats,
    Failure,
    RequestDelta,
    RequestExplanation,
    SequenceReport,
    StepOutput,
)
from engine.page_messages import PageRow, PagesRead
from engine.page_reports import read_page, read_pages, read_sequence
from engine.prompt_reader import PromptPiece, PromptReaders
from engine.prompt_states import PromptPart
from engine.reports import grammar_ledger, ledger_report, request_explanation, scheduler_stats
from engine.sampling_params import SamplingParams
from engine.step_executor import InlineExecutor, StepExecutor
from engine.step_result import DrawnToken, StepResult, StepRunner
from engine.step_times import StepTimes
from scheduler.batch import ScheduledBatch
from scheduler.output import TokenOutput
from scheduler.refusal import NeverFits, Refusal, RefusalReason
from scheduler.request import FinishReason, Request
from scheduler.scheduler import Scheduler

MAX_FAILED_STEPS = 3
STATS_INTERVAL_SECONDS = 0.5
GRAMMAR_WAIT_SECONDS = 0.01  # that messages wait at most while there is nothing to do but to compile

logger = logging.getLogger("octavo.engine")


class EngineBroken(Exception):
    """Steps keep failing."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was submitted."""

    batch: ScheduledBatch
    parts: Mapping[str, PromptPart]
    result: Future[StepResult]


class Engine:
    """Requests in, token deltas out, one step at a time. ``queue_timeout`` is in seconds; None: no limit."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        *,
        eos_token_ids: frozenset[int],
        vocab_size: int,
        page_bytes: int,
        audit_interval: int | None = None,
        seed: int | None = None,
        queue_timeout: float | None = None,
        executor: StepExecutor | None = None,
        adapters: Adapters | None = None,
        idle_work: Sequence[IdleWork] = (),
    ) -> None:
        """``idle_work``: for whoever steps the engine to advance, the first first, while it has no work."""
        self.scheduler = scheduler
        self.runner = runner
        self.adapters = adapters or Adapters()
        self.idle_work = idle_work
        self._eos_token_ids = eos_token_ids
        self._page_bytes = page_bytes
        self._audit_interval = audit_interval
        self._queue_timeout = queue_timeout
        self._executor = executor or InlineExecutor()
        self._compiler = GrammarCompiler(vocab_size, eos_token_ids)
        self._grammars = GrammarQueue(self._compiler, queue_timeout)
        self._seeds = random.Random(seed)  # of requests that bring none, in the order they come
        self._draws = Draws(eos_token_ids, vocab_size)
        self._readers = PromptReaders()
        self._positions: dict[str, int] = {}  # last told, of requests that asked
        self._pending: list[RequestDelta] = []  # decided outside a step
        self._under_way: _Step | None = None
        self._times = StepTimes()
        self._failed_steps = 0
        self._audit_failures = 0
        self._stats_sent = 0.0

    @property
    def has_work(self) -> bool:
        return self._runs or bool(self._grammars)

    @property
    def _runs(self) -> bool:
        return bool(self._pending) or self._under_way is not None or self.scheduler.has_work

    # ---- requests come and go

    def submit(self, request: EngineRequest, constrain: Constrain | None = None) -> None:
        """Queue a request. One that cannot run ends at once, with an error; it never reaches a step.

        ``constrain`` makes the constraint of each of its sequences, where its sampling has a grammar. Without it, the
        grammar is compiled first.
        """
        names = (request.request_id, *request.children)
        try:
            self.adapters.take(request.adapter, names)
        except AdapterError as error:
            failure = Failure(code=error.code, message=str(error))
            self._pending += [failed_delta(name, failure) for name in names]
            return
        if request.sampling.grammar is None or constrain is not None:
            self._queue(request, constrain)
        else:
            self._grammars.add(request)

    def use_tokens(self, tokens: Sequence[bytes]) -> None:
        """What tokens stand for (see `TokenTable`); before the first grammar."""
        self._compiler.use_tokens(tokens)

    def _queue_compiled(self) -> None:
        """Queue what has waited for its grammar, or say why it never will be."""
        if not self._runs:
            self._grammars.wait(GRAMMAR_WAIT_SECONDS)
        for one in self._grammars.take_compiled():
            draws_eos = not one.request.sampling.ignore_eos
            self._queue(one.request, partial(one.grammar.matcher, draws_eos=draws_eos), one.arrived)
        for refused in self._grammars.take_refused():
            ledger = None
            if refused.was_late:
                self.scheduler.counters.refusals[RefusalReason(refused.failure.code)] += 1
                ledger = grammar_ledger(refused.waited)
            self.adapters.release(refused.request_id)
            self._pending.append(failed_delta(refused.request_id, refused.failure, ledger))

    def _queue(
        self,
        request: EngineRequest,
        constrain: Constrain | None = None,
        arrived: float | None = None,
    ) -> None:
        sampling = request.sampling
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=self._seeds.getrandbits(63))
        names = (request.request_id, *request.children)
        editors: dict[str, LogitEditor] = {}
        try:
            editors = self._draws.editors(request, names, constrain)
            if request.pooling is not None and (sampling.max_tokens or request.children):
                raise ValueError("a request for an embedding draws no tokens, and is for one sequence")
            family = [self._request(request, name, sampling, editors.get(name)) for name in names]
            family[0].children = family[1:]
            self.scheduler.add(family[0], arrived)
        except (NeverFits, ValueError) as error:
            code = "never_fits" if isinstance(error, NeverFits) else "invalid"
            failure = Failure(code=code, message=str(error))
            self._pending += [failed_delta(name, failure) for name in names]
            for name in names:
                self.adapters.release(name)
        else:
            self._draws.add(names, sampling, editors)
            self._readers.add(family[0], request)
            if request.reports_position:
                self._positions[request.request_id] = 0

    def _request(
        self, request: EngineRequest, request_id: str, sampling: SamplingParams, editor: LogitEditor | None
    ) -> Request:
        draws_ahead = editor is None or not editor.reads_tokens
        adapter = self.adapters.use_of(request_id)
        return Request(
            request_id=request_id,
            token_ids=list(request.prompt_token_ids),
            max_tokens=sampling.max_tokens,
            eos_token_ids=frozenset() if sampling.ignore_eos else self._eos_token_ids,
            stop_token_ids=frozenset(sampling.stop_token_ids),
            block_hashes=BlockHashes(self.scheduler.blocks.block_size, request.cache_salt, adapter.digest),
            rotates=request.rotates,
            priority=request.priority,
            tenant=request.tenant,
            timeout=request.timeout,
            queue_timeout=self._queue_timeout,
            # samples are ranked by all tokens of their steps, those after a stop string included
            speculates=draws_ahead and not sampling.rank,
            draws_ahead=draws_ahead,
            reads_prompt=request.request_id == request_id and request.reads_prompt,
            adapter=adapter.number,
        )

    def abort(self, request_ids: list[str]) -> None:
        """End these requests, in whatever state they are; ids that have ended or never were are ignored."""
        for request_id in request_ids:
            if (request := self.scheduler.finish(request_id)) is not None:
                ledger = ledger_report(request.ledger)
            elif (waited := self._grammars.remove(request_id)) is not None:
                ledger = grammar_ledger(waited)
            else:
                continue
            self._forget(request_id)
            self._pending.append(aborted_delta(request_id, ledger))

    # ---- steps

    def step(self) -> StepOutput:
        """Schedule, execute, account. Raises EngineBroken when steps fail one after the other."""
        if self._grammars:
            self._queue_compiled()
        self._times.begin()
        batch = self.scheduler.schedule()
        deltas, self._pending = self._pending, []
        deltas += [self._refused(refusal) for refusal in self.scheduler.take_refusals()]
        deltas += self._new_positions()
        due = self._launch_step(batch) if batch else None
        if self._executor.overlaps:
            due, self._under_way = self._under_way, due
        if due is not None:
            deltas += self._finish_step(due)
            self._times.end(due.batch)
            if self._audit_interval and self._times.steps % self._audit_interval == 0:
                self.audit()
        elif not batch:
            self._times.drop()
        return StepOutput(deltas=deltas, stats=self._stats_at_times())

    def _launch_step(self, batch: ScheduledBatch) -> _Step:
        draws = self._draws.of_step(batch)
        for name in draws.whole:
            if (request := self.scheduler.finish(name)) is not None:
                self._pending.append(whole_delta(request))
            self._forget(name)
        for name, error in draws.failed:
            self._fail_alone(name, error)
        parts = self._readers.parts(batch)
        self._times.lap("schedule")
        launched = self._executor.submit(self.runner.launch, batch, draws.sampling, draws.edits, parts)
        if self._executor.overlaps:
            self._times.lap_of_wait()
        return _Step(batch, parts, launched)

    def _fail_alone(self, request_id: str, error: Exception) -> None:
        """End a request that nobody else shares the fault of; the next step's output says so."""
        request = self.scheduler.finish(request_id)
        self._forget(request_id)
        ledger = None if request is None else ledger_report(request.ledger)
        self._pending.append(failed_delta(request_id, failure_of_draw(error), ledger))

    def _finish_step(self, step: _Step) -> list[RequestDelta]:
        try:
            result = step.result.result()
            drawn = result.tokens()
        except Exception as error:
            self._times.lap_of_wait()
            return self._fail_step(step, error)
        self._times.lap_of_wait(result.sample_seconds)
        self._failed_steps = 0
        self.scheduler.observe(step.batch, result.seconds)
        pieces = self._readers.take(step.batch, step.parts, result.states, self.scheduler.is_current)
        accepted = {name: token.num_accepted for name, token in drawn.items() if token.num_accepted}
        outputs = self.scheduler.update(step.batch, {name: token.token_id for name, token in drawn.items()}, accepted)
        deltas = [
            self._delta(output, drawn.get(output.request.request_id), pieces.pop(output.request.request_id, None))
            for output in outputs
        ]
        self._compiler.masks.begin()
        deltas += [prompt_delta(name, piece) for name, piece in pieces.items() if piece.logprobs]
        self._times.lap("output")
        return deltas

    def _fail_step(self, step: _Step, error: Exception) -> list[RequestDelta]:
        """End all that a step ran; raises EngineBroken where too many have failed in a row."""
        tell(logger, "a step failed", level=logging.ERROR, error=error)
        self._failed_steps += 1
        failure = Failure(code="step_failed", message=f"the step failed: {type(error).__name__}: {error}", started=True)
        ended = self.scheduler.fail(step.batch)
        for request in ended:
            self._forget(request.request_id)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineBroken(f"{self._failed_steps} steps failed in a row; the last with: {error!r}") from error
        self._times.lap("output")
        return [failed_delta(one.request_id, failure, ledger_report(one.ledger)) for one in ended]

    def _delta(self, output: TokenOutput, drawn: DrawnToken | None, piece: PromptPiece | None) -> RequestDelta:
        reason = self._ending(output)
        if reason is not None:
            self._forget(output.request.request_id)
        return drawn_delta(output, reason, drawn, piece)

    def _ending(self, output: TokenOutput) -> FinishReason | None:
        """Why its tokens end a request. A whole output at the limit is a stop, no length."""
        request_id, reason = output.request.request_id, output.finish_reason
        if reason is FinishReason.STOP or output.token_id is None:
            return reason
        try:
            is_whole = self._draws.accept(request_id, (*output.accepted, output.token_id))
        except Exception as error:
            if reason is None:
                self._fail_alone(request_id, error)
            return reason
        if not is_whole:
            return reason
        self.scheduler.finish(request_id)
        return FinishReason.STOP

    def _refused(self, refusal: Refusal) -> RequestDelta:
        self._forget(refusal.request_id)
        return refused_delta(refusal)

    def _new_positions(self) -> list[RequestDelta]:
        """Places in the queue that changed, for those who asked for theirs."""
        if not self._positions:
            return []
        deltas = []
        waiting = {request.request_id: place for place, request in enumerate(self.scheduler.waiting.expected(), 1)}
        for request_id, told in list(self._positions.items()):
            place = waiting.get(request_id)
            if place is None:
                del self._positions[request_id]  # it has started
            elif place != told:
                self._positions[request_id] = place
                deltas.append(RequestDelta(request_id=request_id, token_ids=[], queue_position=place))
        return deltas

    def _forget(self, request_id: str) -> None:
        self._draws.forget(request_id)
        self._readers.forget(request_id)
        self.adapters.release(request_id)
        self._positions.pop(request_id, None)

    # ---- what there is to know

    def audit(self) -> list[str]:
        """Account for every page; what is wrong is counted, printed with its owner, and mended where it can be.

        It would be a defect of ours: a page that leaked must not stay lost until the next restart all the same.
        """
        problems = self.scheduler.blocks.audit()
        self._audit_failures += len(problems)
        for problem in problems:
            tell(logger, f"page audit: {problem}", level=logging.ERROR)
        if problems:
            returned = self.scheduler.blocks.repair()
            tell(logger, f"page audit: {len(returned)} pages returned to the pool", level=logging.WARNING)
        return problems

    def explain(self, request_id: str) -> RequestExplanation | None:
        """Why a request waits, or was preempted; None when it is not known, or no longer."""
        explanation = self.scheduler.explain(request_id)
        return self._grammars.explain(request_id) if explanation is None else request_explanation(explanation)

    def read_pages(self, query_id: int) -> PagesRead:
        """Every page and sequence, now."""
        return read_pages(query_id, self.scheduler, self._grammars)

    def read_page(self, page: int) -> PageRow | None:
        """One page, now; None where there is none of that number."""
        return read_page(self.scheduler, page)

    def read_sequence(self, request_id: str) -> SequenceReport | None:
        """One sequence, now; None when it is not known, or no longer."""
        return read_sequence(self.scheduler, self._grammars, request_id)

    def stats(self) -> EngineStats:
        """Pages, queues and counters, now."""
        return scheduler_stats(
            self.scheduler,
            self._grammars,
            page_bytes=self._page_bytes,
            steps=self._times,
            audit_failures=self._audit_failures,
            adapter_requests=self.adapters.requests({request.request_id for request in self.scheduler.running}),
        )

    def _stats_at_times(self) -> EngineStats | None:
        """Stats for a message: before the engine falls idle, and else only so often, as they take a look at all."""
        now = time.perf_counter()
        if self.has_work and now - self._stats_sent < STATS_INTERVAL_SECONDS:
            return None
        self._stats_sent = now
        return self.stats()
