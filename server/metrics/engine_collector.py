"""EngineCollector: the families of what the engine knows, made when there is a scrape from the client's latest stats.

Invariants: every series exists from the first scrape on, with 0, except those of a layer group, which exist once the
engine has told its groups, and those that say what was loaded, which exist while it is; labels come from fixed sets,
never from a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from engine.client import EngineClient, EngineState
from engine.messages import EngineReady
from server.metrics import catalogue
from server.metrics.engine_counters import EngineCounters
from server.metrics.engine_readings import GAUGES, NO_STATS, tenant_label
from server.metrics.family import family, histogram_family


class EngineCollector:
    """``tenants`` are all that requests can have."""

    def __init__(self, client: EngineClient, model_name: str, tenants: Sequence[str]) -> None:
        self._client = client
        self._model_name = model_name
        self._no_page_seconds = {(tenant_label(tenant),): 0.0 for tenant in tenants}
        self._counters = EngineCounters()

    def update(self) -> None:
        """See what the engine has counted so far, in case that it dies."""
        self._counters.update(self._client.ready, self._client.stats)

    def families(self) -> Iterator[Metric]:
        self.update()
        stats = self._client.stats or NO_STATS
        for spec, read in GAUGES:
            yield family(spec, read(stats))
        for spec, counts in self._counters.counts().items():
            known = self._no_page_seconds if spec is catalogue.TENANT_PAGE_SECONDS else {}
            yield family(spec, (known | counts).items())
        for spec, histogram in self._counters.histograms().items():
            yield histogram_family(spec, histogram.counts, histogram.total)
        up = self._client.state is EngineState.READY
        yield family(catalogue.ENGINE_UP, [((), float(up))])
        yield family(catalogue.ENGINE_RESTARTS, [((), self._client.num_restarts)])
        yield family(catalogue.REQUESTS_IN_FLIGHT, [((), self._client.num_in_flight)])
        sizes = [((one.name,), float(one.num_bytes)) for one in self._client.adapters.values()]
        yield family(catalogue.ADAPTER_BYTES, sizes)
        yield from self._loaded(self._client.ready)

    def _loaded(self, ready: EngineReady | None) -> Iterator[Metric]:
        """What was loaded, in labels."""
        model, cache = family(catalogue.MODEL_INFO), family(catalogue.CACHE_CONFIG_INFO)
        if ready is not None:
            config = self._client.config
            caching = "true" if config.enable_prefix_caching else "false"
            device = (ready.device, ready.dtype, ready.weight_form, ready.attention_backend)
            pages = (str(ready.block_size), str(ready.num_pages), str(ready.page_bytes), ready.kv_dtype, caching)
            labels = (self._model_name, *device, str(ready.max_model_len))
            model = family(catalogue.MODEL_INFO, [(labels, 1.0)])
            cache = family(catalogue.CACHE_CONFIG_INFO, [((*pages, str(ready.stats.host_pages_total)), 1.0)])
        yield model
        yield cache
