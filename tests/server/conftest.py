"""An app over an engine that follows a script: real tokenizer, real arithmetic of what fits, no model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import orjson
import pytest
from fastapi import FastAPI
from starlette.types import Message

from engine.adapter_messages import AdapterAnswer, UnloadAdapter
from engine.adapters import AdapterError, Adapters
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.histogram import Histogram
from engine.messages import (
    STEP_DURATION_BOUNDS,
    STEP_PARTS,
    STEP_SEQUENCES_BOUNDS,
    STEP_TOKENS_BOUNDS,
    EngineReady,
    EngineRequest,
    EngineStats,
    Failure,
    GroupUsage,
    Ledger,
    RequestDelta,
    RequestExplanation,
    SequenceReport,
)
from engine.page_messages import PageRow, PagesRead
from engine.sampling_params import TokenLogprobs
from scheduler.request import FinishReason
from server.app import create_app
from server.state import ServerState
from server.text.chat_template import ChatTemplate
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer
from tests.server.schema_check import SchemaCheck

MODEL = "org/tiny"
END = 256  # the EOS token, after one token for each byte
VOCAB_SIZE = 260
HIDDEN_SIZE = 4
CONTEXT = 512
NUM_PAGES = 20  # of 16 tokens, so 319 or so tokens of one sequence

BYTE_IDS = {byte: token_id for token_id, byte in enumerate(BYTE_LEVEL_ALPHABET.values())}
LIKELY = dict(
    zip(
        [BYTE_IDS[byte] for byte in b"e ta\xf0\x9f"],
        (-0.6931471824645996, -1.5, -2.25, -3.125, -4.0625, -5.0),
        strict=True,
    )
)
UNLIKELY = -9.210340499877930

Step = RequestDelta | Exception | asyncio.Event | Callable[[], object]


def make_group(name: str, **changes: int) -> GroupUsage:
    """Pages of a layer group, 1,024 bytes each; what is not given is 0."""
    fields = dict.fromkeys(("cached", "held", "shared", "evicted", "held_slots", "wasted_slots"), 0) | changes
    return GroupUsage(name=name, bytes_held=1024 * fields["held"], **fields)


def make_stats(**changes: Any) -> EngineStats:
    fields: dict[str, Any] = {
        "pages_total": NUM_PAGES,
        "pages_free": NUM_PAGES,
        "page_bytes": 1024,
        "groups": [make_group("full")],
        "oldest_cached_seconds": 0.0,
        "host_pages_total": 0,
        "host_pages_free": 0,
        "host_pages_swapped": 0,
        "running": 0,
        "waiting": 0,
        "waiting_by_reason": {},
        "wanted_pages": 0,
        "exhaustion_seconds": None,
        "queued_tokens": 0,
        "longest_wait_seconds": 0.0,
        "preemptions": [],
        "refusals": {},
        "overtakes": 0,
        "rotations": 0,
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "missed_prompt_tokens": {},
        "recomputed_tokens": 0,
        "generation_tokens": 0,
        "drafts": 0,
        "draft_tokens": 0,
        "accepted_draft_tokens": 0,
        "page_seconds": 0.0,
        "tenant_page_seconds": {},
        "steps": 0,
        "step_seconds": 0.0,
        "step_part_seconds": dict.fromkeys(STEP_PARTS, 0.0),
        "step_durations": Histogram.empty(STEP_DURATION_BOUNDS),
        "step_tokens": Histogram.empty(STEP_TOKENS_BOUNDS),
        "step_sequences": Histogram.empty(STEP_SEQUENCES_BOUNDS),
        "audit_failures": 0,
    }
    return EngineStats(**(fields | changes))


def make_ledger(**changes: Any) -> Ledger:
    """What a sequence cost that ran for a second, with nothing remarkable; ``changes`` say what else."""
    fields: dict[str, Any] = {
        "queue_seconds": 0.125,
        "prefill_seconds": 0.25,
        "decode_seconds": 0.625,
        "peak_pages": 1,
        "page_seconds": 0.5,
        "cached_tokens": 0,
        "recomputed_tokens": 0,
        "rotations": 0,
        "draft_tokens": 0,
        "accepted_draft_tokens": 0,
        "preemptions": [],
    }
    return Ledger(**(fields | changes))


def make_pages_read(num_pages: int = NUM_PAGES, **changes: Any) -> PagesRead:
    """Pages that are all free, and no sequences; ``changes`` say what else."""
    fields: dict[str, Any] = {
        "query_id": 1,
        "group_names": ["full"],
        "states": bytes(num_pages + 1),
        "groups": bytes(num_pages + 1),
        "fills": bytes(num_pages + 1),
        "ref_counts": bytes(2 * (num_pages + 1)),
        "holders": bytes(4 * (num_pages + 1)),
        "sequences": [],
        "num_sequences": 0,
    }
    return PagesRead(**(fields | changes))


def make_ready(**changes: Any) -> EngineReady:
    fields: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "int8",
        "threads": 2,
        "attention_backend": "scripted",
        "weight_form": "int8",
        "weight_bytes": 4_000_000_000,
        "kv_bytes": NUM_PAGES * 1024,
        "num_pages": NUM_PAGES,
        "page_bytes": 1024,
        "block_size": 16,
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "num_speculative_tokens": 0,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "layer_windows": [None],
        "eos_token_ids": [END],
        "stage_seconds": {"weights": 1.5},
        "warnings": [],
        "stats": make_stats(),
    }
    return EngineReady(**(fields | changes))


def rate(token_id: int, num_top: int) -> TokenLogprobs:
    """What the scripted engine says of a token, at any position: the same few are the most likely everywhere."""
    ids = list(LIKELY)
    rank = ids.index(token_id) + 1 if token_id in LIKELY else 100
    return TokenLogprobs(LIKELY.get(token_id, UNLIKELY), rank, ids[:num_top], list(LIKELY.values())[:num_top])


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


@pytest.fixture(scope="session", name="rate")
def rate_fixture() -> Callable[[int, int], TokenLogprobs]:
    return rate


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """One token for each byte, and one control token that ends a text."""
    tokens = [*BYTE_LEVEL_ALPHABET, "<|end|>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 256 + [3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": END,
        }
    )


@pytest.fixture
def engine(byte_tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(byte_tokenizer)


@pytest.fixture
def state(engine: ScriptedEngine, byte_tokenizer: Tokenizer) -> ServerState:
    return ServerState(
        engine,
        MODEL,
        tokenizer=byte_tokenizer,
        chat_template=ChatTemplate(
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]", stops=("[user]",)
        ),
        max_request_bytes=20_000,
    )


@pytest.fixture
def app(state: ServerState) -> FastAPI:
    return create_app(state)


class Api:
    """Requests to the app, and what its answers must always look like."""

    def __init__(self, app: FastAPI, state: ServerState) -> None:
        self.app = app
        self.model = MODEL
        self.state = state
        self.checked = SchemaCheck(app)
        transport = httpx.ASGITransport(app=self.checked, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://octavo")

    async def completion(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": "hi"} | fields)

    async def chat(self, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}]
        return await self.http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages} | fields)

    async def metric(self, sample: str) -> float:
        """The value of one line of /metrics."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        [value] = [line.removeprefix(sample + " ") for line in lines if line.startswith(sample + " ")]
        return float(value)

    async def outcomes(self) -> dict[str, int]:
        """Requests ended, by outcome; outcomes without any left out."""
        counts = {name: int(await self.metric(f'octavo_requests_total{{outcome="{name}"}}')) for name in FinishReason}
        return {str(name): count for name, count in counts.items() if count}

    async def raw(self, path: str, body: bytes, leave: asyncio.Event, *, whole: bool = True) -> AsyncIterator[Message]:
        """The ASGI messages that answer a POST whose client leaves when ``leave`` is set; ``whole``: with all sent."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": not whole}]

        async def receive() -> Message:
            if incoming:
                return incoming.pop(0)
            await leave.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": "1.1",
                "method": "POST",
                "path": path,
                "raw_path": path.encode(),
                "root_path": "",
                "scheme": "http",
                "query_string": b"",
                "headers": [],
                "client": ("test", 1),
                "server": ("octavo", 80),
            }
            try:
                await self.app(scope, receive, sent.put)
            finally:
                await sent.put(None)

        running = asyncio.create_task(run())
        while (message := await sent.get()) is not None:
            yield message
        await running

    @staticmethod
    def events(text: str) -> list[Any]:
        """The decoded events of a stream, whose last is the string "[DONE]"."""
        frames = text.removesuffix("\n\n").split("\n\n")
        payloads = [frame.removeprefix("data: ") for frame in frames]
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        assert payloads[-1] == "[DONE]"
        return [orjson.loads(payload) for payload in payloads[:-1]] + ["[DONE]"]

    @staticmethod
    def assert_error(
        response: httpx.Response, status: int, *, param: str | None = None, code: str | None = None
    ) -> str:
        """Check that ``response`` is an error object and nothing else; its message."""
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert body.keys() == {"error"}
        error = body["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        kinds = {429: "rate_limit_error"}
        assert error["type"] == kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        final = (status < 500 and status != 429) or code == "timeout"
        assert response.headers.get("x-should-retry") == ("false" if final else None)
        assert (error["param"], error["code"]) == (param, code)
        message = error["message"]
        assert isinstance(message, str)
        assert message
        return message

    @staticmethod
    def joined(chunks: Iterable[Any], index: int = 0) -> str:
        """The text of one choice of a streamed completion."""
        return "".join(
            c["text"] for chunk in chunks if chunk != "[DONE]" for c in chunk["choices"] if c["index"] == index
        )


@pytest.fixture
async def api(app: FastAPI, state: ServerState) -> AsyncIterator[Api]:
    api = Api(app, state)
    yield api
    await api.http.aclose()
    assert api.checked.problems == []
