"""ProcessMetrics: CPU, memory and files of the API process and of the engine process, read from /proc by a scrape.

Knows nothing of what they do. Invariant: names and help are the catalogue's; where there is no /proc, and for an engine
process that is not there, nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector

from server.metrics.catalogue import CATALOGUE

ENGINE_NAMESPACE = "octavo_engine"
_HELP = {spec.name: spec.help for spec in CATALOGUE}


class ProcessMetrics:
    """``engine_pid`` tells the id of the engine process there is now, if any."""

    def __init__(self, engine_pid: Callable[[], int | None]) -> None:
        self._own = ProcessCollector(registry=None)
        self._engine = ProcessCollector(ENGINE_NAMESPACE, pid=lambda: engine_pid() or 0, registry=None)

    def families(self) -> Iterator[Metric]:
        for collector in (self._own, self._engine):
            for family in collector.collect():
                family.documentation = _HELP[family.name]
                yield family
