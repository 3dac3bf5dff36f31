"""Metrics: everything that one server's /metrics shows.

What the API process sees (outcomes, latencies, HTTP answers) is counted here as it happens; how long a request queued
and computed is taken from its ledger, however it ended; the rest is read when there is a scrape, from the engine and
from /proc. Invariants: what is exported is the catalogue, in its order; every series exists from the first scrape on,
with 0 (but see `EngineCollector`); labels come from fixed sets, never from a request; and of requests

    submitted = ended, by outcome + refused because the queue was full + in flight

so that a request which was never accepted is no failure of one that was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from platform import python_version

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.client import EngineClient, EngineError
from engine.messages import RequestDelta
from scheduler.request import FinishReason
from server.metrics import catalogue
from server.metrics.engine_collector import EngineCollector
from server.metrics.family import family
from server.metrics.observed_histogram import ObservedHistogram
from server.metrics.process_metrics import ProcessMetrics
from server.metrics.tally import Tally
from server.metrics.vllm_names import vllm_families
from server.tenant import NO_TENANT
from server.version import octavo_version

STATS_SECONDS = 1.0  # that a scrape waits for the engine to say how things are; it says so between two steps

_PLACES = {spec.name: place for place, spec in enumerate(catalogue.CATALOGUE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd:
    """How an accepted request ended, and its tokens: of the prompt, generated, and most that could be generated.

    ``seconds`` are from its arrival at the API, ``token_seconds`` the mean between two tokens, where there were two.
    """

    outcome: FinishReason
    seconds: float
    prompt_tokens: int
    generation_tokens: int
    max_tokens: int
    token_seconds: float | None = None


class Metrics(Collector):
    """All metrics of one server. A request here is one sequence: a completion with three prompts is three.

    ``tenants`` are all that requests can have. ``with_vllm_names``: show the same numbers under vLLM's names too.
    """

    def __init__(
        self,
        client: EngineClient,
        model_name: str,
        *,
        tenants: Sequence[str] = (NO_TENANT,),
        with_vllm_names: bool = False,
    ) -> None:
        self._client = client
        self._model_name = model_name
        self._with_vllm_names = with_vllm_names
        self._engine = EngineCollector(client, model_name, tenants)
        self._processes = ProcessMetrics(lambda: client.pid)
        versions = (octavo_version(), python_version(), _torch_version())
        self._build = family(catalogue.BUILD_INFO, [(versions, 1.0)])
        self._submitted = Tally(catalogue.REQUESTS_SUBMITTED)
        self._refusals = Tally(catalogue.REFUSALS)
        self._outcomes = Tally(catalogue.REQUESTS)
        self._responses = Tally(catalogue.HTTP_RESPONSES)
        self._prompt_tokens = ObservedHistogram(catalogue.REQUEST_PROMPT_TOKENS)
        self._generation_tokens = ObservedHistogram(catalogue.REQUEST_GENERATION_TOKENS)
        self._max_tokens = ObservedHistogram(catalogue.REQUEST_MAX_TOKENS)
        self._samples = ObservedHistogram(catalogue.REQUEST_SAMPLES)
        self._ttft = ObservedHistogram(catalogue.TTFT)
        self._itl = ObservedHistogram(catalogue.ITL)
        self._tpot = ObservedHistogram(catalogue.TPOT)
        self._e2e = ObservedHistogram(catalogue.E2E)
        self._queue_time = ObservedHistogram(catalogue.QUEUE_TIME)
        self._prefill_time = ObservedHistogram(catalogue.PREFILL_TIME)
        self._decode_time = ObservedHistogram(catalogue.DECODE_TIME)
        self._inference_time = ObservedHistogram(catalogue.INFERENCE_TIME)

    # ---- what happens

    def count_samples(self, number: int) -> None:
        """A prompt goes to the engine, of which so many samples are asked for. Call once for each prompt."""
        self._samples.observe(number)

    def count_submitted(self) -> None:
        """A request goes to the engine. Call exactly once for each, before its end."""
        self._submitted.count()

    def observe_first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def observe_tokens(self, seconds: float, num_tokens: int) -> None:
        """``num_tokens`` more tokens came ``seconds`` after the one before: as many equal intervals."""
        self._itl.observe(seconds / num_tokens, num_tokens)

    def count_end(self, end: RequestEnd) -> None:
        """An accepted request ended. Call exactly once for each."""
        self._outcomes.count(end.outcome)
        self._prompt_tokens.observe(end.prompt_tokens)
        self._generation_tokens.observe(end.generation_tokens)
        self._max_tokens.observe(end.max_tokens)
        if end.token_seconds is not None:
            self._tpot.observe(end.token_seconds)
        if end.outcome in (FinishReason.STOP, FinishReason.LENGTH):
            self._e2e.observe(end.seconds)
        self._engine.update()

    def count_failure(self, code: str) -> None:
        """The engine ended a request with this code; it counts here if it is that of a refusal."""
        if self._refusals.knows(code):
            self._refusals.count(code)

    def observe_engine_end(self, last: RequestDelta) -> None:
        """A sequence ended in the engine, as its last delta tells, whoever still reads it."""
        if (ledger := last.ledger) is None:
            return
        if ledger.queue_seconds is not None:
            self._queue_time.observe(ledger.queue_seconds)
        if ledger.prefill_seconds is not None:
            self._prefill_time.observe(ledger.prefill_seconds)
            self._inference_time.observe(ledger.prefill_seconds + (ledger.decode_seconds or 0.0))
        if ledger.decode_seconds is not None:
            self._decode_time.observe(ledger.decode_seconds)

    def expect_response(self, route: str, status: int) -> None:
        """This answer can come; show its series from the start."""
        self._responses.expect(route, str(status))

    def count_response(self, route: str, status: int) -> None:
        """An HTTP answer begins; ``route`` is a template."""
        self._responses.count(route, str(status))

    # ---- what is shown

    async def scrape(self) -> bytes:
        """The text exposition format, version 0.0.4: the engine as it is now or, if it does not say, as last seen."""
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(STATS_SECONDS):
                await self._client.read_stats()
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The families, in the order of the catalogue; then those under other names."""
        families = [*self._engine.families(), *self._processes.families(), self._build, *self._own_families()]
        families.sort(key=lambda one: _PLACES[one.name])
        yield from families
        if self._with_vllm_names:
            yield from vllm_families(families, self._model_name)

    def _own_families(self) -> Iterator[Metric]:
        for counted in (self._submitted, self._refusals, self._outcomes, self._responses):
            yield counted.family()
        for observed in (
            self._prompt_tokens,
            self._generation_tokens,
            self._max_tokens,
            self._samples,
            self._ttft,
            self._itl,
            self._tpot,
            self._e2e,
            self._queue_time,
            self._prefill_time,
            self._decode_time,
            self._inference_time,
        ):
            yield observed.family()


def _torch_version() -> str:
    """That of the distribution: this process never imports torch."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "unknown"
