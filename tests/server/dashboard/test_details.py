"""One page and one sequence, looked at closely."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client import EngineState
from engine.messages import PreemptionNote, RequestExplanation, SequenceReport
from engine.page_messages import PageRow
from scheduler.request import RequestStatus, WaitReason
from server.http.request_id import RequestId
from server.request_registry import InFlightRequest, RequestRegistry

PAGE = PageRow(
    page=7, state="held", group="full", owners=["cmpl-1-0-0", "cmpl-2-0-0"], ref_count=2, fill=16,
    hash_prefix="0badcafe", cached_seconds=None,
)  # fmt: skip
NOTE = PreemptionNote(
    requester="cmpl-2-0-0", seconds=1.5, kind="recompute", cause="decode", pages_freed=18, tokens_to_recompute=47
)


def in_flight(name: str, chosen: str | None, tenant: str) -> InFlightRequest:
    return InFlightRequest(
        request_id=RequestId(name, chosen), tenant=tenant, arrived=0.0, sequence_ids=[f"{name}-0-0", f"{name}-0-1"]
    )


@pytest.fixture
def report(engine: Any) -> SequenceReport:
    explanation = RequestExplanation(
        request_id="cmpl-1-0-1", status=RequestStatus.WAITING, text="It waits at position 2 for 14.5 s.",
        seconds_since_arrival=14.51234, position=2, expected_start_seconds=15.41234, wait_reason=WaitReason.PAGES,
        wanted_pages=18, available_pages=12, num_tokens=48, num_computed_tokens=32, num_output_tokens=41,
        num_overtakers=0, preemptions=[NOTE],
    )  # fmt: skip
    return SequenceReport(
        explanation=explanation, ledger=engine.make_ledger(preemptions=[NOTE]), pages={"full": [5, 3], "window": []}
    )


async def test_a_page_names_all_its_owners_as_their_clients_do(api, engine, registry: RequestRegistry) -> None:
    engine.page_rows[7] = PAGE
    with registry.holding(in_flight("cmpl-1", "job-5", "key-1")):
        response = await api.http.get("/dashboard/pages/7")
    assert response.headers["cache-control"] == "no-store"
    assert response.json() == {
        "page": 7,
        "state": "held",
        "group": "full",
        "owners": [
            {"id": "cmpl-1-0-0", "request_id": "job-5"},
            {"id": "cmpl-2-0-0", "request_id": "cmpl-2-0-0"},
        ],
        "ref_count": 2,
        "fill": 16,
        "hash": "0badcafe",
        "cached_seconds": None,
    }


@pytest.mark.parametrize("page", ["0", "-1", "21", "1.0", "one", "%D9%A1", "9" * 30, "%20"])
async def test_what_is_no_page_is_not_found(api, page: str) -> None:
    api.assert_error(await api.http.get(f"/dashboard/pages/{page}"), 404, code="page_not_found")


async def test_a_sequence_tells_where_it_stands_what_it_cost_and_where_its_pages_are(
    api, engine, registry: RequestRegistry, report: SequenceReport
) -> None:
    engine.reports["cmpl-1-0-1"] = report
    with registry.holding(in_flight("cmpl-1", "job-5", "key-1")):
        response = await api.http.get("/dashboard/requests/cmpl-1-0-1")
    note = {
        "requester": "cmpl-2-0-0", "seconds": 1.5, "kind": "recompute", "cause": "decode", "pages_freed": 18,
        "tokens_to_recompute": 47,
    }  # fmt: skip
    assert response.json() == {
        "id": "cmpl-1-0-1",
        "request_id": "job-5",
        "tenant": "key-1",
        "status": "waiting",
        "age_seconds": 14.512,
        "text": "It waits at position 2 for 14.5 s.",
        "position": 2,
        "wait_reason": "pages",
        "wanted_pages": 18,
        "available_pages": 12,
        "expected_start_seconds": 15.412,
        "tokens": {"total": 48, "computed": 32, "generated": 41},
        "ledger": {
            "queue_seconds": 0.125, "prefill_seconds": 0.25, "decode_seconds": 0.625, "peak_pages": 1,
            "page_seconds": 0.5, "cached_tokens": 0, "recomputed_tokens": 0, "rotations": 0, "draft_tokens": 0,
            "accepted_draft_tokens": 0, "preemptions": [note],
        },
        "pages": {"full": [5, 3], "window": []},
    }  # fmt: skip


async def test_a_sequence_that_is_over_is_not_found(api) -> None:
    api.assert_error(await api.http.get("/dashboard/requests/cmpl-1-0-0"), 404, code="request_not_found")


@pytest.mark.parametrize("path", ["pages/7", "requests/cmpl-1-0-0"])
@pytest.mark.parametrize("engine_state", [EngineState.STARTING, EngineState.RESTARTING])
async def test_while_the_engine_does_not_serve_it_is_not_said_that_there_is_none(
    api, engine, path, engine_state
) -> None:
    engine.state = engine_state
    api.assert_error(await api.http.get(f"/dashboard/{path}"), 503, code="engine_unavailable")
