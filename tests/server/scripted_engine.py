"""ScriptedEngine: an EngineClient without a process, whose sequences say what a test has written down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.adapter_messages import AdapterAnswer, UnloadAdapter
from engine.adapters import AdapterError, Adapters
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.messages import (
    EngineRequest,
    EngineStats,
    Failure,
    Ledger,
    RequestDelta,
    RequestExplanation,
    SequenceReport,
)
from engine.page_messages import PageRow, PagesRead
from engine.sampling_params import TokenLogprobs
from scheduler.request import FinishReason
from server.text.tokenizer import Tokenizer
from tests.server.engine_reports import END, make_group, make_ledger, make_pages_read, make_ready, make_stats, rate

Step = RequestDelta | Exception | asyncio.Event | Callable[[], object]


@dataclass(frozen=True)
class ScriptedAdapter:
    digest: str
    rank: int = 8
    num_bytes: int = 4096


class ScriptedStore:
    """Adapters without weights; a path that ends in "broken" has none."""

    def __init__(self) -> None:
        self.installed: list[int] = []

    def read(self, path: str) -> ScriptedAdapter:
        if path.endswith("broken"):
            raise AdapterError("invalid_adapter", f"{path} has no adapter_config.json")
        return ScriptedAdapter(path)

    def install(self, number: int, adapter: ScriptedAdapter) -> None:
        self.installed.append(number)

    def remove(self, number: int) -> None:
        self.installed.remove(number)


class ScriptedEngine(EngineClient):
    """EngineClient without a process: each sequence takes the next script, and what happened to it is kept.

    A step of a script is a delta to yield, an exception to raise, an event to wait for, or a function to call. Without
    a script a sequence gets "abc" again and again up to its max_tokens. A request with children takes the scripts of
    the whole family at once: its own first, then each child's. Log probabilities are those that `rate` gives, where a
    request asks for them.
    """

    make_ready = staticmethod(make_ready)
    make_stats = staticmethod(make_stats)
    make_group = staticmethod(make_group)
    make_ledger = staticmethod(make_ledger)
    make_pages_read = staticmethod(make_pages_read)
    rate = staticmethod(rate)

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(EngineConfig(model="tiny"))
        self._become_ready(make_ready())
        self.tokenizer = tokenizer
        self.scripts: list[list[Step]] = []
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.silence = 0.0
        self.explanations: dict[str, RequestExplanation] = {}
        self.measured: EngineStats | None = None  # what it says when asked; None: nothing new
        self.pages = make_pages_read()
        self.page_rows: dict[int, PageRow] = {}
        self.reports: dict[str, SequenceReport] = {}
        self.num_reads = 0  # of all pages
        self.abort_ledger = make_ledger()  # that ``on_end`` gets with an abort
        self.store = ScriptedStore()
        self.loads = Adapters(self.store)
        self._playing: dict[str, list[Step]] = {}

    async def _ask(self, make_query: Callable[[int], Any]) -> AdapterAnswer:
        self._serving()
        query = make_query(1)
        if isinstance(query, UnloadAdapter):
            answers = [self.loads.unload(query)]
        else:
            self.loads.begin_load(query)
            while not (answers := self.loads.take_loaded()):
                await asyncio.sleep(0)
        self.adapters = {one.name: one for one in answers[0].adapters}
        return answers[0]

    @property
    def silent_seconds(self) -> float:
        return self.silence

    def answer(
        self,
        text: str,
        finish: FinishReason | None = FinishReason.LENGTH,
        *,
        per_delta: int = 1,
        cached: int = 0,
        logprob: float = 0.0,
        ledger: Ledger | None = None,
    ) -> list[Step]:
        """Queue and return the script of an answer, some tokens (bytes) at a time, then EOS if it ends by stop.

        ``logprob`` is that of each delta.
        """
        ids = self.tokenizer.encode(text) + ([END] if finish is FinishReason.STOP else [])
        cuts = [ids[start : start + per_delta] for start in range(0, len(ids), per_delta)]
        script: list[Step] = [
            RequestDelta(
                request_id="",
                token_ids=cut,
                num_cached_tokens=cached,
                finish_reason=finish if number == len(cuts) else None,
                logprob=logprob,
                ledger=ledger if number == len(cuts) else None,
            )
            for number, cut in enumerate(cuts, 1)
        ]
        self.scripts.append(script)
        return script

    @staticmethod
    def failure(code: str, message: str = "no", **fields: Any) -> RequestDelta:
        """The step of a script that ends a sequence without a result."""
        failure = Failure(code=code, message=message, **fields)
        return RequestDelta(request_id="", token_ids=[], finish_reason=FinishReason.ERROR, failure=failure)

    @staticmethod
    def queued(position: int) -> RequestDelta:
        """The step of a script that tells a place in the queue."""
        return RequestDelta(request_id="", token_ids=[], queue_position=position)

    async def read_stats(self) -> EngineStats:
        self._serving()
        self.stats = self.measured or self.stats
        assert self.stats is not None
        return self.stats

    async def explain(self, request_id: str) -> RequestExplanation | None:
        self._serving()
        return self.explanations.get(request_id)

    async def read_pages(self) -> PagesRead:
        self._serving()
        self.num_reads += 1
        return self.pages

    async def read_page(self, page: int) -> PageRow | None:
        self._serving()
        return self.page_rows.get(page)

    async def read_sequence(self, request_id: str) -> SequenceReport | None:
        self._serving()
        return self.reports.get(request_id)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[RequestDelta]:
        self._serving()
        self.requests.append(request)
        for name in (request.request_id, *request.children):
            if not self.scripts and request.sampling.max_tokens == 0:
                self.scripts.append([RequestDelta(request_id="", token_ids=[], finish_reason=FinishReason.LENGTH)])
            elif not self.scripts:
                self.answer(("abc" * request.sampling.max_tokens)[: request.sampling.max_tokens])
            self._playing[name] = self.scripts.pop(0)
            self._collectors[name] = None  # type: ignore[assignment]
        self._unfollowed.update(request.children)
        try:
            told = request.prompt_logprobs is None
            async with contextlib.aclosing(self._deltas(request.request_id)) as deltas:
                async for delta in deltas:
                    if not told and (delta.token_ids or delta.finish_reason is not None):
                        told = True
                        pieces = [*delta.prompt_logprobs, *self.rate_prompt(request)]
                        delta = msgspec.structs.replace(delta, prompt_logprobs=pieces)
                    yield delta
        finally:
            for name in self._unfollowed.intersection(request.children):
                self._unfollowed.discard(name)
                self._abandon(name)

    async def follow(self, child_id: str) -> AsyncGenerator[RequestDelta]:
        self._unfollowed.remove(child_id)
        async with contextlib.aclosing(self._deltas(child_id)) as deltas:
            async for delta in deltas:
                yield delta

    async def _deltas(self, request_id: str) -> AsyncGenerator[RequestDelta]:
        over = False
        try:
            for step in self._playing.pop(request_id):
                await asyncio.sleep(0)
                if isinstance(step, Exception):
                    over = True
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, RequestDelta):
                    over = step.finish_reason is not None
                    if over:
                        self._tell_end(msgspec.structs.replace(step, request_id=request_id))
                    yield self._rated(request_id, step)
                else:
                    step()
        finally:
            if over:
                del self._collectors[request_id]
            else:
                self._abandon(request_id)

    def rate_prompt(self, request: EngineRequest) -> list[TokenLogprobs | None]:
        assert request.prompt_logprobs is not None
        rest = [rate(token_id, request.prompt_logprobs) for token_id in request.prompt_token_ids[1:]]
        return [None, *rest]

    def _rated(self, request_id: str, delta: RequestDelta) -> RequestDelta:
        [request] = [one for one in self.requests if request_id in (one.request_id, *one.children)]
        num_top = request.sampling.logprobs
        if num_top is None or delta.logprobs:
            return delta
        return msgspec.structs.replace(delta, logprobs=[rate(token_id, num_top) for token_id in delta.token_ids])

    def _abandon(self, request_id: str) -> None:
        del self._collectors[request_id]
        self.aborted.append(request_id)
        self._tell_end(
            RequestDelta(
                request_id=request_id, token_ids=[], finish_reason=FinishReason.ABORT, ledger=self.abort_ledger
            )
        )

    def _tell_end(self, last: RequestDelta) -> None:
        if self.on_end is not None:
            self.on_end(last)
