"""RequestTracer: the observer that makes the spans of each API request once it is over.

    POST /v1/chat/completions      server span, of HTTP and generative AI; child of its client's span, if it named one
      ├─ queue, prefill, decode    of the first sequence; preemptions are events of the phase they fell in
      └─ queue, prefill, decode    of the next

Knows records and span names, not how spans leave. All times are of one clock, the API process's monotonic one, on the
date of the request's arrival. Invariants: whether a request is traced is decided once, and by its client where that has
decided; baggage is not read.
"""

from __future__ import annotations

import logging

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.messages import Ledger, PreemptionNote
from server.observation.request_record import Outcome, RequestRecord, SequenceRecord
from server.tracing.request_attributes import Attributes, request_attributes, span_name
from server.tracing.sequence_phases import DECODE, PREFILL, SequencePhases
from server.tracing.span_export import SpanExport

MAX_TRACED_SEQUENCES = 64  # of one request; an embedding of a thousand texts must not fill the queue of spans
PREEMPTION = "preemption"
HEADER_LOGGER = "opentelemetry.trace"  # whose warnings repeat what headers of clients say


class RequestTracer:
    """Makes spans with the tracer of ``export``, which it closes."""

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        self._tracer = export.tracer
        self._propagator = TraceContextTextMapPropagator()
        logging.getLogger(HEADER_LOGGER).setLevel(logging.ERROR)

    def finished(self, record: RequestRecord) -> None:
        parent = self._propagator.extract(record.trace_headers, Context()) if record.trace_headers else Context()
        span = self._tracer.start_span(
            span_name(record), parent, SpanKind.SERVER, request_attributes(record), start_time=record.arrived_ns
        )
        record.trace_id = format_trace_id(span.get_span_context().trace_id)
        if not span.is_recording():
            return
        within = set_span_in_context(span, Context())
        for name, sequence in list(record.sequences.items())[:MAX_TRACED_SEQUENCES]:
            if sequence.ledger is not None:
                self._trace_sequence(record, name, sequence, sequence.ledger, within)
        if record.outcome is Outcome.ERROR:
            span.set_status(Status(StatusCode.ERROR, record.error_code))
        span.end(_time(record, _ended(record)))

    def _trace_sequence(
        self, record: RequestRecord, name: str, sequence: SequenceRecord, ledger: Ledger, within: Context
    ) -> None:
        phases = SequencePhases.of(sequence, ledger, _ended(record))
        spans: dict[str, Span] = {}
        for phase in phases.phases:
            spans[phase.name] = self._tracer.start_span(
                phase.name,
                within,
                attributes=_phase_attributes(phase.name, name, sequence, ledger),
                start_time=_time(record, phase.start),
            )
        for note in ledger.preemptions if spans else ():
            phase, moment = phases.at(note.seconds)
            spans[phase.name].add_event(PREEMPTION, _preemption(note), _time(record, moment))
        for phase in phases.phases:
            spans[phase.name].end(_time(record, phase.end))

    def close(self) -> None:
        self._export.close()


def _ended(record: RequestRecord) -> float:
    return record.arrived if record.ended is None else record.ended


def _time(record: RequestRecord, moment: float) -> int:
    """Nanoseconds since 1970 of a moment on the monotonic clock."""
    return record.arrived_ns + round((moment - record.arrived) * 1e9)


def _phase_attributes(phase: str, name: str, sequence: SequenceRecord, ledger: Ledger) -> Attributes:
    attributes: Attributes = {"octavo.sequence.id": name, "octavo.sequence.number": sequence.number}
    if phase == PREFILL:
        attributes["octavo.cached_tokens"] = ledger.cached_tokens
    elif phase == DECODE:
        attributes |= {
            "octavo.peak_pages": ledger.peak_pages,
            "octavo.page_seconds": ledger.page_seconds,
            "octavo.recomputed_tokens": ledger.recomputed_tokens,
            "octavo.draft_tokens": ledger.draft_tokens,
            "octavo.accepted_draft_tokens": ledger.accepted_draft_tokens,
        }
        if sequence.finish_reason is not None:
            attributes["octavo.finish_reason"] = sequence.finish_reason.value
    return attributes


def _preemption(note: PreemptionNote) -> Attributes:
    return {
        "octavo.preemption.kind": note.kind,
        "octavo.preemption.cause": note.cause,
        "octavo.preemption.requester": note.requester,
        "octavo.preemption.pages_freed": note.pages_freed,
        "octavo.preemption.tokens_to_recompute": note.tokens_to_recompute,
    }
