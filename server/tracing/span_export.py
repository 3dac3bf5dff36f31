"""SpanExport: where spans are made and how they leave, by the OpenTelemetry SDK.

Follows the SDK's own variables (OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_EXPORTER_OTLP_HEADERS and so on) except for the
endpoint. Invariants: spans leave on a thread of their own, from a queue that drops what a collector does not take in
time; nothing outside of this object is changed, the SDK's global provider included.
"""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from server.version import octavo_version

CLOSE_SECONDS = 3.0
TRACES_PATH = "/v1/traces"  # of the protocol, where a URL has none
SCOPE = "octavo"


class SpanExport:
    """Sends what its ``tracer`` makes to the collector at ``endpoint``, a URL of OTLP over HTTP."""

    def __init__(self, endpoint: str) -> None:
        version = octavo_version()
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(traces_url(endpoint))))
        self.tracer = self._provider.get_tracer(SCOPE, version)

    def close(self) -> None:
        """Send what is left, unless that takes longer than a few seconds."""
        # in a thread, since the SDK's own limit is half a minute and a collector may not answer at all
        closing = threading.Thread(target=self._provider.shutdown, name="span export", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def traces_url(endpoint: str) -> str:
    """Where traces go; a URL without a path is that of the collector."""
    url = urlsplit(endpoint)
    return url._replace(path=TRACES_PATH).geturl() if url.path in ("", "/") else endpoint


def _resource(version: str) -> Resource:
    """What the environment says of this service, and its name and version where it says none."""
    said = Resource.create({SERVICE_VERSION: version})
    if str(said.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return said.merge(Resource({SERVICE_NAME: SCOPE}))
    return said
