"""Spans of requests to a scripted engine, as a collector gets them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import orjson
import pytest

from engine.messages import PreemptionNote
from scheduler.request import FinishReason
from server.tracing.span_export import SpanExport, traces_url
from server.tracing.tracer import RequestTracer
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
SERVER_KIND = 2
UNSET, ERROR = 0, 2


def headers(*, sampled: bool = True) -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{CALLER}-0{int(sampled)}", "tracestate": "vendor=1", "baggage": "user=secret"}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
async def tracer(state, receiver) -> AsyncIterator[RequestTracer]:
    tracer = RequestTracer(SpanExport(receiver.url))
    state.journal.add(tracer)
    yield tracer
    await asyncio.to_thread(tracer.close)


def seconds(span: ReceivedSpan) -> float:
    return (span.end - span.start) / 1e9


def assert_nested(parent: ReceivedSpan, children: list[ReceivedSpan]) -> None:
    """One after the other without a gap, within their parent."""
    assert parent.start <= children[0].start
    assert children[-1].end <= parent.end
    for one, other in pairwise(children):
        assert one.start <= one.end == other.start <= other.end


async def test_a_streamed_chat_is_a_child_of_its_callers_span_and_has_the_phases_of_its_sequence(
    api, engine, receiver, tracer
) -> None:
    ledger = engine.make_ledger(queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0, peak_pages=2)
    engine.answer("hello", FinishReason.STOP, cached=3, ledger=ledger)
    body = {"model": api.model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    before = time.time_ns()
    response = await api.http.post("/v1/chat/completions", json=body, headers=headers() | {"x-request-id": "mine"})
    after = time.time_ns()
    await asyncio.to_thread(tracer.close)
    [server] = receiver.named("POST /v1/chat/completions")
    assert (server.trace_id, server.parent_id, server.trace_state) == (TRACE, CALLER, "vendor=1")
    assert (server.kind, server.status) == (SERVER_KIND, (UNSET, ""))
    assert before <= server.start < server.end <= after + 1_000_000
    own_id = orjson.loads(response.text.partition("data: ")[2].partition("\n")[0])["id"]
    first_chunk = server.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first_chunk < seconds(server)
    assert server.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": api.model,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": api.model,
        "gen_ai.response.id": own_id,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 19,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "octavo.request.id": "mine",
        "octavo.outcome": "stop",
        "octavo.sequences": 1,
        "octavo.peak_pages": 2,
        "octavo.page_seconds": 0.5,
        "octavo.recomputed_tokens": 0,
        "octavo.preemptions": 0,
        "octavo.draft_tokens": 0,
        "octavo.accepted_draft_tokens": 0,
    }
    children = receiver.children(server)
    assert [child.name for child in children] == ["queue", "prefill", "decode"]
    assert {child.trace_id for child in children} == {TRACE}
    assert_nested(server, children)
    assert [child.attributes["octavo.sequence.id"] for child in children] == [f"{own_id}-0-0"] * 3
    assert children[1].attributes["octavo.cached_tokens"] == 0
    assert children[2].attributes["octavo.finish_reason"] == "stop"
    assert server.resource["service.name"] == "octavo"


async def test_each_of_several_sequences_has_phases_of_its_own(api, engine, receiver, tracer) -> None:
    for decode in (0.0, None):
        engine.answer("ab", ledger=engine.make_ledger(queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=decode))
    await api.completion(n=2, max_tokens=2)
    await asyncio.to_thread(tracer.close)
    [server] = receiver.named("POST /v1/completions")
    assert server.parent_id == ""
    children = receiver.children(server)
    assert [(child.attributes["octavo.sequence.number"], child.name) for child in children] == [
        (0, "queue"), (0, "prefill"), (0, "decode"), (1, "queue"), (1, "prefill"),
    ]  # fmt: skip
    assert_nested(server, children[:3])
    assert_nested(server, children[3:])
    assert server.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert server.attributes["gen_ai.operation.name"] == "text_completion"


async def test_a_preemption_is_an_event_of_the_phase_it_fell_in(api, engine, receiver, tracer) -> None:
    gate = asyncio.Event()
    note = PreemptionNote(
        requester="other-0-0", seconds=0.035, kind="swap", cause="pages", pages_freed=7, tokens_to_recompute=33
    )
    ledger = engine.make_ledger(
        queue_seconds=0.01, prefill_seconds=0.02, decode_seconds=0.03, preemptions=[note], recomputed_tokens=33
    )
    script = engine.answer("ab", ledger=ledger)
    engine.scripts[-1] = [gate, *script]
    asyncio.get_running_loop().call_later(0.08, gate.set)  # so that the ledger's 60 ms fit in
    await api.completion(max_tokens=2)
    await asyncio.to_thread(tracer.close)
    [server] = receiver.named("POST /v1/completions")
    queue, prefill, decode = receiver.children(server)
    assert [seconds(one) for one in (prefill, decode)] == pytest.approx([0.02, 0.03], abs=1e-6)
    assert seconds(queue) >= 0.01
    assert (queue.events, prefill.events) == ([], [])
    [(name, moment, attributes)] = decode.events
    assert name == "preemption"
    assert (moment - decode.start) / 1e9 == pytest.approx(0.005, abs=1e-6)
    assert attributes == {
        "octavo.preemption.kind": "swap",
        "octavo.preemption.cause": "pages",
        "octavo.preemption.requester": "other-0-0",
        "octavo.preemption.pages_freed": 7,
        "octavo.preemption.tokens_to_recompute": 33,
    }
    assert server.attributes["octavo.preemptions"] == 1


async def test_an_aborted_request_has_the_phases_it_came_to_within_its_own_time(api, engine, receiver, tracer) -> None:
    engine.abort_ledger = engine.make_ledger(queue_seconds=9.0, prefill_seconds=None, decode_seconds=None)
    leave = asyncio.Event()
    engine.scripts.append([engine.queued(1), leave, asyncio.Event()])
    api.state.stream_queue_position = True
    body = orjson.dumps({"model": api.model, "prompt": "hi", "stream": True})
    async for message in api.raw("/v1/completions", body, leave):
        if b"queued" in message.get("body", b""):
            leave.set()
    await asyncio.to_thread(tracer.close)
    [server] = receiver.named("POST /v1/completions")
    [queue] = receiver.children(server)
    assert_nested(server, [queue])
    assert (server.attributes["octavo.outcome"], server.status) == ("abort", (UNSET, ""))
    assert "gen_ai.response.finish_reasons" not in server.attributes


@pytest.mark.parametrize(
    ("code", "status", "told", "span_status"),
    [
        ("queue_full", 429, "queue_full", (UNSET, "")),
        ("never_fits", 400, "kv_capacity_exceeded", (UNSET, "")),
        ("step_failed", 500, "step_failed", (ERROR, "step_failed")),
    ],
)
async def test_only_an_error_of_the_server_sets_the_status_of_a_span(
    api, engine, receiver, tracer, code, status, told, span_status
) -> None:
    engine.scripts.append([engine.failure(code)])
    await api.completion()
    await asyncio.to_thread(tracer.close)
    [server] = receiver.spans
    assert server.attributes["http.response.status_code"] == status
    assert server.attributes["error.type"] == told
    assert server.status == span_status


async def test_nothing_is_sent_of_a_request_whose_caller_does_not_trace_it(api, receiver, tracer) -> None:
    await api.http.post("/v1/completions", json={"model": api.model, "prompt": "hi"}, headers=headers(sampled=False))
    await api.http.get("/v1/models")
    await asyncio.to_thread(tracer.close)
    assert [span.name for span in receiver.spans] == ["GET /v1/models"]


@pytest.mark.parametrize(
    "traceparent",
    ["", "00-xyz", f"00-{TRACE}-{CALLER}", f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01", "0" * 10_000],
)
async def test_a_traceparent_that_is_none_is_as_good_as_none(api, receiver, tracer, traceparent) -> None:
    response = await api.http.get("/v1/models", headers={"traceparent": traceparent})
    assert response.status_code == 200
    await asyncio.to_thread(tracer.close)
    assert receiver.spans[0].parent_id == ""


async def test_samplers_are_those_of_the_environment(api, state, receiver, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-service")
    tracer = RequestTracer(SpanExport(receiver.url))
    state.journal.add(tracer)
    await api.http.get("/v1/models")
    await api.http.get("/v1/models", headers=headers())
    await asyncio.to_thread(tracer.close)
    assert [(span.trace_id, span.resource["service.name"]) for span in receiver.spans] == [(TRACE, "my-service")]


async def test_requests_of_more_sequences_than_that_do_not_fill_the_queue_of_spans(
    api, engine, receiver, tracer
) -> None:
    for _ in range(70):
        engine.answer("a", ledger=engine.make_ledger(queue_seconds=0.0, prefill_seconds=None, decode_seconds=None))
    await api.completion(prompt=["hi"] * 70, max_tokens=1)
    await asyncio.to_thread(tracer.close)
    [server] = receiver.named("POST /v1/completions")
    assert len(receiver.children(server)) == 64
    assert server.attributes["octavo.sequences"] == 70


@pytest.mark.alone
async def test_a_collector_that_refuses_or_is_not_there_changes_no_answer_and_the_end_comes_all_the_same(
    api, engine, state, receiver, monkeypatch
) -> None:
    monkeypatch.setattr("server.tracing.span_export.CLOSE_SECONDS", 0.5)
    receiver.status = 503
    for url in (receiver.url, "http://127.0.0.1:9"):
        tracer = RequestTracer(SpanExport(url))
        state.journal.add(tracer)
        for _ in range(3):
            assert (await api.completion()).status_code == 200
        began = time.monotonic()
        await asyncio.to_thread(tracer.close)
        assert time.monotonic() - began < 2.5


@pytest.mark.parametrize(
    "trace_headers",
    [{"traceparent": "secret" * 100}, headers() | {"tracestate": "secret=secret=secret,=secret"}],
    ids=["traceparent", "tracestate"],
)
async def test_i08_nothing_of_a_trace_header_that_is_wrong_is_logged(
    api, engine, tracer, caplog: pytest.LogCaptureFixture, trace_headers
) -> None:
    engine.answer("hello", FinishReason.STOP)
    body = {"model": api.model, "prompt": "hi"}
    assert (await api.http.post("/v1/completions", json=body, headers=trace_headers)).status_code == 200
    assert caplog.records == []


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/otlp/v1/traces?x=1", "https://collector/otlp/v1/traces?x=1"),
    ],
)
def test_a_url_without_a_path_is_that_of_the_collector(given, used) -> None:
    assert traces_url(given) == used
