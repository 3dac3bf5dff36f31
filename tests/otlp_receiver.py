"""A collector of OpenTelemetry spans: OTLP over HTTP, in protobuf, as any exporter sends it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

PATIENCE_SECONDS = 60.0


class ReceivedSpan:
    """A span as it came. Times are in nanoseconds since 1970, ids in hexadecimal; ``events`` are (name, time, ...)."""

    def __init__(self, span: Any, resource: dict[str, Any]) -> None:
        self.name: str = span.name
        self.kind: int = span.kind
        self.trace_id: str = span.trace_id.hex()
        self.span_id: str = span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.trace_state: str = span.trace_state
        self.start: int = span.start_time_unix_nano
        self.end: int = span.end_time_unix_nano
        self.attributes = _values(span.attributes)
        self.events = [(one.name, one.time_unix_nano, _values(one.attributes)) for one in span.events]
        self.status: tuple[int, str] = (span.status.code, span.status.message)
        self.resource = resource


class OtlpReceiver:
    """Listens while its context lasts. ``bodies`` are what came, byte by byte; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[ReceivedSpan] = []
        self.bodies: list[bytes] = []
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == "application/x-protobuf"
                receiver._take(self.path, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(receiver.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def _take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        with self._came:
            self.bodies.append(body)
            for group in request.resource_spans:
                resource = _values(group.resource.attributes)
                for scope in group.scope_spans:
                    self.spans += [ReceivedSpan(span, resource) for span in scope.spans]
            self._came.notify_all()

    def wait_for(self, count: int) -> list[ReceivedSpan]:
        """All spans, once there are so many."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.spans) >= count, PATIENCE_SECONDS), len(self.spans)
            return list(self.spans)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """In the order of their starts, those of one sequence together."""
        own = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(own, key=lambda span: (span.attributes["octavo.sequence.number"], span.start, span.end))

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
