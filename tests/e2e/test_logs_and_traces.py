"""What a real server logs and traces of real requests. Ids like I08 name cases known from other servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

pytestmark = pytest.mark.slow

SENTINEL = "Xyzzy-Plugh"
KEY = f"key-{SENTINEL}"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
PAGES = 40  # of 16 tokens


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def server(start_server: Callable[..., Server], tiny_llama_dir: Path, receiver: OtlpReceiver) -> Iterator[Server]:
    server = start_server(
        str(tiny_llama_dir), "--device", "cpu", "--served-model-name", "tiny",
        "--chat-template", "plain-transcript", "--num-gpu-blocks-override", str(PAGES), "--api-key", KEY,
        "--log-format", "json", "--otlp-traces-endpoint", receiver.url,
    )  # fmt: skip
    server.http.headers.update({"authorization": f"Bearer {KEY}", "x-secret": SENTINEL, "user-agent": SENTINEL})
    yield server
    server.stop()


def post(server: Server, path: str, request_id: str, **fields: Any) -> httpx.Response:
    headers = {"x-request-id": request_id, "traceparent": f"00-{TRACE}-{CALLER}-01", "baggage": f"user={SENTINEL}"}
    return server.http.post(path, json={"model": "tiny", "ignore_eos": True} | fields, headers=headers)


def assert_phases_follow_each_other(receiver: OtlpReceiver, span: ReceivedSpan, names: list[str]) -> None:
    children = receiver.children(span)
    assert [child.name for child in children] == names
    assert span.start <= children[0].start
    assert children[-1].end <= span.end
    assert all(one.start <= one.end == other.start <= other.end for one, other in pairwise(children))
    assert all(child.start <= moment <= child.end for child in children for _, moment, _ in child.events)


def test_i08_requests_of_all_kinds_are_logged_and_traced_and_no_secret_is(
    server: Server, receiver: OtlpReceiver
) -> None:
    question = [{"role": "user", "content": SENTINEL}]
    chat = post(server, "/v1/chat/completions", "chat", messages=question, stream=True, max_tokens=20)
    assert chat.text.endswith("data: [DONE]\n\n")
    assert post(server, "/v1/completions", "two", prompt=SENTINEL, n=2, max_tokens=8).status_code == 200
    assert post(server, "/v1/completions", "refused", prompt=SENTINEL, max_tokens=10_000).status_code == 400
    wrong = {"authorization": f"Bearer wrong-{SENTINEL}"}
    assert server.http.post("/v1/completions", json={}, headers=wrong).status_code == 401
    assert server.http.get("/v1/models").status_code == 200
    long = {"max_tokens": 400, "temperature": 0}
    beside = threading.Thread(target=post, args=(server, "/v1/completions", "other"), kwargs={"prompt": "a"} | long)
    beside.start()
    assert post(server, "/v1/completions", "crowded", prompt=f"b {SENTINEL}", **long).status_code == 200
    beside.join()
    body = {"model": "tiny", "prompt": SENTINEL, "stream": True, "max_tokens": 600, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "left"}) as response:
        next(response.iter_lines())
    metrics = server.http.get("/metrics").text
    server.wait_until(lambda: '"request_id":"left"' in server.log.read_text(), "logged")
    assert server.stop() == 0

    text = server.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["model"] for line in lines if line["message"] == "serving"] == ["tiny"]
    requests = {line["request_id"]: line for line in lines if line["logger"] == "octavo.requests"}
    assert {name: (line["status"], line["outcome"]) for name, line in requests.items() if name} == {
        "chat": (200, "length"), "two": (200, "length"), "refused": (400, "refused"), "other": (200, "length"),
        "crowded": (200, "length"), "left": (200, "abort"),
    }  # fmt: skip
    assert {line["tenant"] for name, line in requests.items() if name} == {"key-1"}
    assert requests["two"]["tokens"]["generated"] == 16
    assert requests["two"]["ledger"]["known"] == requests["two"]["sequences"] == 2
    assert requests["left"]["ledger"]["known"] == 1
    assert requests["left"]["ledger"]["peak_pages"] > 0
    assert requests["chat"]["seconds"]["total"] >= sum(
        requests["chat"]["seconds"][part] for part in ("queue", "prefill", "decode")
    )

    spans = {span.attributes.get("octavo.request.id"): span for span in receiver.spans if span.kind == 2}
    for name in ("chat", "two", "refused", "other", "crowded"):
        assert (spans[name].trace_id, spans[name].parent_id) == (TRACE, CALLER)
        assert requests[name]["trace_id"] == TRACE
    assert spans["left"].parent_id == ""
    phases = ["queue", "prefill", "decode"]
    for name in ("chat", "other", "crowded", "left"):
        assert_phases_follow_each_other(receiver, spans[name], phases)
    assert [child.name for child in receiver.children(spans["two"])] == phases * 2
    assert receiver.children(spans["refused"]) == []
    assert spans["refused"].attributes["http.response.status_code"] == 400

    preemptions = [
        event for name in ("other", "crowded") for child in receiver.children(spans[name]) for event in child.events
    ]
    assert len(preemptions) >= 1
    assert len(preemptions) == sum(requests[name]["ledger"]["preemptions"] for name in ("other", "crowded"))
    for kind, _, attributes in preemptions:
        assert kind == "preemption"
        assert attributes["octavo.preemption.kind"] == "recompute"
        assert attributes["octavo.preemption.tokens_to_recompute"] > 0
        assert 0 < attributes["octavo.preemption.pages_freed"] <= PAGES

    assert SENTINEL not in text
    assert SENTINEL not in metrics
    assert SENTINEL.encode() not in b"".join(receiver.bodies)
