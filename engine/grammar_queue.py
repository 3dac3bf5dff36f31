"""GrammarQueue: requests that wait, outside the scheduler, until their grammar is compiled.

    add -> take_compiled (to the scheduler) | take_refused | remove (abort)

Knows no pages and no steps. Invariants: a request leaves once; its time runs from its arrival here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import msgspec

from engine.grammar_compiler import CompiledGrammar, GrammarCompiler
from engine.grammar_source import GrammarError
from engine.messages import EngineRequest, Failure, RequestExplanation
from engine.page_messages import SequenceRow
from scheduler.refusal import RefusalReason
from scheduler.request import RequestStatus, WaitReason


@dataclass(frozen=True, slots=True)
class CompiledRequest:
    """A request whose grammar is compiled; ``arrived`` is when it came, on the clock of the queue."""

    request: EngineRequest
    grammar: CompiledGrammar
    arrived: float


@dataclass(frozen=True, slots=True)
class RefusedSequence:
    """A sequence that will never run, why, and how many seconds it waited here."""

    request_id: str
    failure: Failure
    waited: float

    @property
    def was_late(self) -> bool:
        """Whether only its time was over; else its grammar is at fault."""
        return self.failure.code in (RefusalReason.TIMEOUT.value, RefusalReason.QUEUE_TIMEOUT.value)


@dataclass(slots=True)
class _Waiting:
    request: EngineRequest
    grammar: Future[CompiledGrammar]
    arrived: float

    @property
    def names(self) -> tuple[str, ...]:
        return (self.request.request_id, *self.request.children)


class GrammarQueue:
    """In the order of arrival, but for grammars that take longer. ``queue_timeout`` is in seconds; None: no limit."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        queue_timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compiler = compiler
        self._queue_timeout = queue_timeout
        self._clock = clock
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        """Requests, whose samples count as one."""
        return len(self._waiting)

    @property
    def longest_wait_seconds(self) -> float:
        """Since the arrival of the first; 0 when none waits."""
        return self._clock() - self._waiting[0].arrived if self._waiting else 0.0

    @property
    def num_sequences(self) -> int:
        return sum(len(one.names) for one in self._waiting)

    def rows(self) -> list[SequenceRow]:
        """Its sequences, none of which has a place among those that could start."""
        now = self._clock()
        return [
            SequenceRow(
                handle=0,
                request_id=name,
                tenant=one.request.tenant,
                status=RequestStatus.WAITING,
                seconds_since_arrival=now - one.arrived,
                num_prompt_tokens=len(one.request.prompt_token_ids),
                num_computed_tokens=0,
                num_output_tokens=0,
                held_pages=0,
                num_preemptions=0,
                wait_reason=WaitReason.GRAMMAR,
                position=None,
            )
            for one in self._waiting
            for name in one.names
        ]

    def add(self, request: EngineRequest) -> None:
        """Have its grammar compiled. Raises ValueError for one that has none."""
        if request.sampling.grammar is None:
            raise ValueError(f"request {request.request_id} has no grammar")
        grammar = self._compiler.compile(request.sampling.grammar)
        self._waiting.append(_Waiting(request, grammar, self._clock()))

    def remove(self, request_id: str) -> float | None:
        """Take out one sequence, after so many seconds; None when it does not wait here.

        The other samples of its prompt wait on.
        """
        for one in self._waiting:
            if request_id in one.names:
                names = [name for name in one.names if name != request_id]
                if names:
                    one.request = msgspec.structs.replace(one.request, request_id=names[0], children=names[1:])
                else:
                    self._waiting.remove(one)
                return self._clock() - one.arrived
        return None

    def wait(self, seconds: float) -> None:
        """Return when a grammar is compiled, or the time is over."""
        wait([one.grammar for one in self._waiting], seconds, FIRST_COMPLETED)

    def take_compiled(self) -> list[CompiledRequest]:
        """Requests that can run now."""
        ready = [one for one in self._waiting if one.grammar.done() and one.grammar.exception() is None]
        if ready:
            self._waiting = [one for one in self._waiting if one not in ready]
        return [CompiledRequest(one.request, one.grammar.result(), one.arrived) for one in ready]

    def take_refused(self) -> list[RefusedSequence]:
        """Sequences that will never run, and why: a grammar that does not compile, or no time left."""
        now = self._clock()
        refused = [(one, failure) for one in self._waiting if (failure := self._failure(one, now)) is not None]
        if refused:
            gone = [one for one, _ in refused]
            self._waiting = [one for one in self._waiting if one not in gone]
        return [RefusedSequence(name, failure, now - one.arrived) for one, failure in refused for name in one.names]

    def explain(self, request_id: str) -> RequestExplanation | None:
        """That it waits; None when it does not wait here."""
        for one in self._waiting:
            if request_id in one.names:
                seconds = self._clock() - one.arrived
                num_tokens = len(one.request.prompt_token_ids)
                return RequestExplanation(
                    request_id=request_id,
                    status=RequestStatus.WAITING,
                    text=f"It waits for {seconds:.1f} s: its grammar is being compiled.",
                    seconds_since_arrival=seconds,
                    position=None,
                    expected_start_seconds=None,
                    wait_reason=WaitReason.GRAMMAR,
                    wanted_pages=0,
                    available_pages=0,
                    num_tokens=num_tokens,
                    num_computed_tokens=0,
                    num_output_tokens=0,
                    num_overtakers=0,
                    preemptions=[],
                )
        return None

    def _failure(self, one: _Waiting, now: float) -> Failure | None:
        if one.grammar.done() and (error := one.grammar.exception()) is not None:
            if isinstance(error, GrammarError):
                return Failure(code="invalid_grammar", message=str(error))
            return Failure(code="invalid", message=f"the grammar was not compiled: {type(error).__name__}: {error}")
        waited, timeout = now - one.arrived, one.request.timeout
        if timeout is not None and waited >= timeout:
            return Failure(code=RefusalReason.TIMEOUT.value, message=f"the timeout of {timeout:g} s is over")
        if self._queue_timeout is not None and waited >= self._queue_timeout:
            message = f"waited for {self._queue_timeout:g} s without a chance to start"
            return Failure(code=RefusalReason.QUEUE_TIMEOUT.value, message=message)
        return None
