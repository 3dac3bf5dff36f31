"""The observers of finished requests that a server was started with: logs and traces, each if it is asked for.

What traces need is imported only for those who want them.
"""

from __future__ import annotations

import sys

from server.logs.request_log import RequestLog
from server.observation.journal import RequestObserver
from server.options import ServeOptions


def make_observers(options: ServeOptions) -> list[RequestObserver]:
    """In the order in which they are to be told: a trace has its id before a log names it."""
    observers: list[RequestObserver] = []
    if options.otlp_traces_endpoint is not None:
        from server.tracing.span_export import SpanExport
        from server.tracing.tracer import RequestTracer

        observers.append(RequestTracer(SpanExport(options.otlp_traces_endpoint)))
    if options.log_requests:
        observers.append(RequestLog(options.engine.log_format, sys.stderr.fileno()))
    return observers
